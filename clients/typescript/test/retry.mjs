// What is sent again, and what never is, against a broker that answers as told.
import assert from "node:assert/strict";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { StrandMQ } from "../dist/index.js";
import { ProblemSchema } from "../dist/gen/strandmq/v1/message_pb.js";
import { PublishService } from "../dist/gen/strandmq/v1/publish_pb.js";

const problem = (reason, retryAfterMs) => ({ reason, message: reason, retryAfterMs: BigInt(retryAfterMs) });
const no = (reason, ms) => ({ problem: problem(reason, ms) });
const yes = (offset) => ({ receipt: { partition: 0, offset: BigInt(offset), duplicate: false } });
const whole = (reason, ms) => new ConnectError(reason, Code.Unavailable, undefined, [{ desc: ProblemSchema, value: create(ProblemSchema, problem(reason, ms)) }]);

/** Publishes against the answers, one for each call; gives outcomes and what was sent each time. */
async function against(answers, messages, options) {
  const sent = [];
  const transport = createRouterTransport((router) =>
    router.service(PublishService, {
      publish(req) {
        sent.push(req.messages.map((m) => m.body.value).join(""));
        const answer = answers[sent.length - 1];
        if (answer === undefined) throw new Error("one call too many");
        if (answer instanceof ConnectError) throw answer;
        return { results: answer };
      },
    }),
  );
  const outcomes = await new StrandMQ(transport, { retryForMs: 60_000 }).publishAll("t", messages, options).then(
    (all) => all.map((o) => o.error?.reason ?? Number(o.receipt.offset)),
    (e) => e.reason,
  );
  return { outcomes, sent };
}
const bare = (...bodies) => bodies.map((body) => ({ key: "k", body }));
const withIds = (...bodies) => bodies.map((body) => ({ key: "k", id: body, body }));
const cut = new ConnectError("the connection broke", Code.Unavailable);

for (const [what, got, want] of [
  ["a refusal that passes", await against([whole("NOT_READY", 1), [yes(0)]], bare("a")), { outcomes: [0], sent: ["a", "a"] }],
  ["a cut, without ids", await against([cut], bare("a", "b")), { outcomes: "NO_ANSWER", sent: ["ab"] }],
  ["a cut, with ids", await against([cut, [yes(0), yes(1)]], withIds("a", "b")), { outcomes: [0, 1], sent: ["ab", "ab"] }],
  ["a cut, with some ids", await against([cut], [...withIds("a"), ...bare("b")]), { outcomes: "NO_ANSWER", sent: ["ab"] }],
  ["a refusal for good", await against([whole("UNKNOWN_TOPIC", 0)], withIds("a")), { outcomes: "UNKNOWN_TOPIC", sent: ["a"] }],
  ["those behind a full queue", await against([[yes(0), no("QUEUE_FULL", 1), no("NOT_SENT", 1), no("BAD_HEADER", 0)], [yes(1), yes(2)]], bare("a", "b", "c", "d")), { outcomes: [0, 1, 2, "BAD_HEADER"], sent: ["abcd", "bc"] }],
  ["one that may be stored", await against([[no("OUTCOME_UNKNOWN", 1), no("NOT_SENT", 1)]], bare("a", "b")), { outcomes: ["OUTCOME_UNKNOWN", "NOT_SENT"], sent: ["ab"] }],
  ["one that may be stored, by its id", await against([[no("OUTCOME_UNKNOWN", 1), no("NOT_SENT", 1)], [yes(0), yes(1)]], withIds("a", "b")), { outcomes: [0, 1], sent: ["ab", "ab"] }],
  ["no patience", await against([[no("QUEUE_FULL", 1)]], bare("a"), { retryForMs: 0 }), { outcomes: ["QUEUE_FULL"], sent: ["a"] }],
]) {
  assert.deepEqual(got, want, what);
}
console.log("retry ok");
