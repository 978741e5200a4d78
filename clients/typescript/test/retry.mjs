// What is sent again, what never is, and after which wait, against a broker that answers as told.
import assert from "node:assert/strict";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { StrandMQ } from "../dist/index.js";
import { ConsumeService } from "../dist/gen/strandmq/v1/consume_pb.js";
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
  ["a cut of a later call", await against([[yes(0), no("QUEUE_FULL", 1)], cut], bare("a", "b")), { outcomes: [0, "NO_ANSWER"], sent: ["ab", "b"] }],
  ["no patience", await against([[no("QUEUE_FULL", 1)]], bare("a"), { retryForMs: 0 }), { outcomes: ["QUEUE_FULL"], sent: ["a"] }],
]) {
  assert.deepEqual(got, want, what);
}

// Giving up between two calls leaves what is known.
{
  const stop = new AbortController();
  const givesUp = (next) => async (req) => {
    const res = await next(req);
    setTimeout(() => stop.abort(), 0); // while the next call is waited for
    return res;
  };
  const publish = () => ({ results: [yes(0), no("QUEUE_FULL", 30_000)] });
  const transport = createRouterTransport((router) => router.service(PublishService, { publish }), { transport: { interceptors: [givesUp] } });
  const all = await new StrandMQ(transport, { retryForMs: 60_000 }).publishAll("t", bare("a", "b"), { signal: stop.signal });
  assert.deepEqual(all.map((o) => o.error?.reason ?? Number(o.receipt.offset)), [0, "QUEUE_FULL"]);
}

// A broker that does not answer does not hold a caller for ever.
{
  const never = () => new Promise(() => {});
  const transport = createRouterTransport((router) => router.service(PublishService, { publish: never }).service(ConsumeService, { settle: never }));
  const mq = new StrandMQ(transport, { publishTimeoutMs: 20, settleTimeoutMs: 20 });
  await assert.rejects(mq.publish("t", { body: "x" }), { reason: "DEADLINE" });
  await assert.rejects(mq.settle("t", "g", "token", 1), { reason: "DEADLINE" });
}

/** The waits before streams are opened again, when each one breaks after these frames. */
async function waits(...frames) {
  const waited = [];
  const transport = createRouterTransport((router) =>
    router.service(ConsumeService, {
      async *subscribe() {
        yield* frames;
        throw cut;
      },
    }),
  );
  const stop = new AbortController();
  const after = globalThis.setTimeout;
  const now = Date.now;
  const start = now();
  Date.now = () => start; // however long a busy machine takes, no stream lives long
  // Nobody waits here, but for a broker that is silent.
  globalThis.setTimeout = (fn, ms, ...args) => (ms >= 30_000 ? after(fn, ms, ...args) : (waited.push(ms), after(fn, 0, ...args)));
  let broke = 0;
  const onReconnect = () => ++broke === 7 && stop.abort();
  try {
    for await (const _ of new StrandMQ(transport).subscribe({ topic: "t", group: "g", signal: stop.signal, onReconnect }));
  } finally {
    globalThis.setTimeout = after;
    Date.now = now;
  }
  return waited.slice(0, 6);
}
const opening = await waits({ session: "s" });
assert.ok(opening[5] >= 1_600, `streams that open and break are opened again after ${opening} ms`);
const working = await waits({ session: "s" }, { deliveries: [{}] });
assert.ok(Math.max(...working) <= 100, `streams that bring deliveries are opened again after ${working} ms`);
// A broker that is silent for a session timeout is given up, and not while the reader is busy.
{
  const timeout = 12_345;
  const after = globalThis.setTimeout;
  const clear = globalThis.clearTimeout;
  const watches = new Map(); // those for silence; they end here, not in time
  globalThis.setTimeout = (fn, ms, ...args) => {
    if (ms !== timeout) return after(fn, ms, ...args);
    const name = Symbol("watch");
    watches.set(name, fn);
    return name;
  };
  globalThis.clearTimeout = (name) => (typeof name === "symbol" ? watches.delete(name) : clear(name));
  let got = 0;
  let streams = 0;
  let closed = 0;
  const silence = () => {
    if (got < 1 || watches.size < 1) return void after(silence, 1); // until the reader waits for more
    for (const fn of watches.values()) fn();
  };
  const transport = createRouterTransport((router) =>
    router.service(ConsumeService, {
      async *subscribe(_, context) {
        const first = ++streams === 1;
        yield { session: "s", sessionTimeoutMs: BigInt(timeout) };
        yield { deliveries: [{}] };
        if (first) silence();
        await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
        closed++;
      },
      leave: () => ({}),
    }),
  );
  const why = [];
  try {
    for await (const _ of new StrandMQ(transport).subscribe({ topic: "t", group: "g", onReconnect: (e) => why.push(e.message) })) {
      assert.equal(watches.size, 0, "the reader's time counts as the broker's");
      if (++got === 2) break;
    }
  } finally {
    globalThis.setTimeout = after;
    globalThis.clearTimeout = clear;
  }
  assert.deepEqual(why, [`the broker has sent nothing for ${timeout} ms`]);
  while (closed < 1) await new Promise((resolve) => setTimeout(resolve, 1)); // the silent stream is ended
}
console.log("retry ok");
