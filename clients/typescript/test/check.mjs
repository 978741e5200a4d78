// What a call is given wrongly is told at the call, with the field, and nothing is sent.
import assert from "node:assert/strict";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { Delivery, StrandMQ, StrandMQError } from "../dist/index.js";
import { DeliverySchema } from "../dist/gen/strandmq/v1/consume_pb.js";
import { PublishService } from "../dist/gen/strandmq/v1/publish_pb.js";

const sent = [];
const transport = createRouterTransport((router) =>
  router.service(PublishService, {
    publish(req) {
      sent.push(...req.messages);
      return { results: req.messages.map(() => ({ receipt: {} })) };
    },
  }),
);
const mq = new StrandMQ(transport);

async function refused(field, fn, reason = "BAD_VALUE") {
  let got = "nothing";
  try {
    await fn();
  } catch (e) {
    got = e;
  }
  assert.ok(got instanceof StrandMQError, `${fn}: ${got}`);
  assert.deepEqual([got.reason, got.field], [reason, field], `${fn}: ${got}`);
}

const circle = {};
circle.of = circle;
for (const [field, message] of [
  ["message", undefined], ["message", null], ["message", "hello"], ["message", new Uint8Array(1)], ["message", ["hello"]],
  ["kye", { kye: "k" }], ["text", { key: "k", text: "hello" }],
  ["key", { key: 5 }], ["key", { key: null }], ["id", { id: 7 }], ["body", { body: 5 }], ["body", { body: { a: 1 } }], ["body", { body: null }],
  ["json", { json: 10n }], ["json", { json: { n: 10n } }], ["json", { json: NaN }], ["json", { json: [Infinity] }], ["json", { json: () => 1 }], ["json", { json: circle }],
  ["headers", { headers: { a: "1" } }], ["headers", { headers: "ab" }], ["headers", { headers: [["a"]] }], ["headers", { headers: [[1, "a"]] }], ["headers", { headers: [["a", 1]] }],
]) {
  await refused(field, () => mq.publish("t", message));
}
await refused("messages[1].key", () => mq.publishAll("t", [{ body: "x" }, { key: 5 }]));
await refused("messages", () => mq.publishAll("t", { body: "x" }));
await refused("topic", () => mq.publish(undefined, { body: "x" }));
await refused("retryForMs", () => mq.publish("t", { body: "x" }, { retryForMs: "1s" }));
await refused("retryFor", () => mq.publish("t", { body: "x" }, { retryFor: 1 }));
await refused("to", () => new StrandMQ("nonsense"));
await refused("to", () => new StrandMQ("localhost:7171"));
await refused("to", () => new StrandMQ(undefined));
await refused("retryFor", () => new StrandMQ(transport, { retryFor: 1 }));
await refused("retryForMs", () => new StrandMQ(transport, { retryForMs: NaN }));
await refused("group", () => mq.subscribe({ topic: "t" }));
await refused("window", () => mq.subscribe({ topic: "t", group: "g", window: 0.5 }));
await refused("createdGroup", () => mq.subscribe({ topic: "t", group: "g", createdGroup: true }));
await refused("delayMs", () => mq.settle("t", "g", "token", 1, 0.5));
await refused("token", () => mq.settle("t", "g", undefined, 1));
assert.equal(sent.length, 0, "what was refused was sent");

const bytes = new Uint8Array([0, 1, 2, 255]);
await mq.publishAll("t", [{ body: bytes }, { body: bytes.buffer }, { body: new DataView(bytes.buffer, 1, 2) }, { key: bytes.buffer, json: null }, { headers: new Map([["a", "1"]]) }]);
assert.deepEqual(sent.map((m) => m.body.value && [...m.body.value]), [[0, 1, 2, 255], [0, 1, 2, 255], [1, 2], [..."null"], undefined]);
assert.deepEqual([[...sent[3].keyKind.value], sent[4].headers[0].name], [[0, 1, 2, 255], "a"]);

const delivery = (value) => new Delivery(create(DeliverySchema, { message: { body: { case: "bytes", value } } }), () => {});
await refused("body", () => delivery(new TextEncoder().encode("{bad")).json(), "BAD_BODY");
await refused("body", () => delivery(bytes).json(), "BAD_BODY");
await refused("body", () => delivery(bytes).text(), "BAD_BODY");

// What is tried again is tried until the time is over, not until the next wait is longer
// than what is left. The time here passes only by waits.
{
  let now = Date.now();
  const start = now;
  const [after, clock] = [globalThis.setTimeout, Date.now];
  Date.now = () => now;
  globalThis.setTimeout = (fn, ms, ...args) => {
    if (ms > 5_000) return after(fn, ms, ...args); // the deadline of a call
    now += ms;
    return after(fn, 0, ...args);
  };
  let last = 0;
  const away = createRouterTransport((router) =>
    router.service(PublishService, {
      publish() {
        last = now;
        throw new ConnectError("the connection broke", Code.Unavailable);
      },
    }),
  );
  try {
    await refused("", () => new StrandMQ(away).publish("t", { id: "i", body: "x" }, { retryForMs: 1_000 }), "NO_ANSWER");
  } finally {
    globalThis.setTimeout = after;
    Date.now = clock;
  }
  assert.equal(Math.round(last - start), 1_000, "the last attempt");
}
console.log("check ok");
