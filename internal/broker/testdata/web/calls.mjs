// Does a topic's main job with the clients that browsers use, over one
// transport, and checks every answer. Usage: node calls.mjs URL TRANSPORT
import assert from "node:assert/strict";
import { fromJson, toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import { createClient, ConnectError, Code } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { PublishService } from "./gen/strandmq/v1/publish_pb.js";
import { ConsumeService, SettleAction } from "./gen/strandmq/v1/consume_pb.js";
import { TopicService, GroupService, DeadLetterService, TraceService, NodeService } from "./gen/strandmq/v1/admin_pb.js";
import { BodyFormat, ProblemSchema } from "./gen/strandmq/v1/message_pb.js";

const [baseUrl, kind] = process.argv.slice(2);
const transports = {
  "connect-json": () => createConnectTransport({ baseUrl }),
  "connect-binary": () => createConnectTransport({ baseUrl, useBinaryFormat: true }),
  "grpc-web": () => createGrpcWebTransport({ baseUrl }),
};
const transport = transports[kind]();
const publish = createClient(PublishService, transport);
const consume = createClient(ConsumeService, transport);
const topics = createClient(TopicService, transport);
const groups = createClient(GroupService, transport);
const dead = createClient(DeadLetterService, transport);
const trace = createClient(TraceService, transport);
const node = createClient(NodeService, transport);

const topic = `web-${kind}`;
const where = { topic, group: "g", member: "m" };

// problem calls fn, which must be refused, and gives code and Problem.
async function problem(fn) {
  try {
    await fn();
  } catch (err) {
    const e = ConnectError.from(err);
    const [p] = e.findDetails(ProblemSchema);
    assert.ok(p, `no Problem in: ${e.message}`);
    return { code: e.code, reason: p.reason, field: p.field };
  }
  assert.fail("was not refused");
}

const receive = async (more = {}) => {
  const res = await consume.receive({ ...where, maxMessages: 10, waitMs: 5000n, bodyFormat: BodyFormat.JSON, ...more });
  return res.deliveries;
};
const settle = async (d, action, more = {}) => {
  const res = await consume.settle({ ...where, settlements: [{ token: d.token, action, ...more }] });
  return res.results[0];
};

assert.equal((await node.nodeInfo({})).node, 1n);
const created = await topics.createTopic({ topic, partitions: 1 });
assert.equal(created.topic.partitions, 1);
assert.equal((await topics.createTopic({ topic, partitions: 1 })).existed, true);
await groups.createGroup({ topic, group: "g", policy: { maxAttempts: 2, backoffMs: 1n } });

// Text, JSON and bytes, with headers that repeat, and a key of any bytes.
const sent = await publish.publish({
  topic,
  messages: [
    { keyKind: { case: "key", value: "a" }, id: "1", body: { case: "text", value: "grüß" }, headers: [
      { name: "h", valueKind: { case: "value", value: "x" } }, { name: "h", valueKind: { case: "valueBytes", value: new Uint8Array([0, 255]) } } ] },
    { keyKind: { case: "keyBytes", value: new Uint8Array([255, 0]) }, body: { case: "json", value: fromJson(ValueSchema, { n: 1.5, list: [true, null, "x"] }) } },
    { keyKind: { case: "key", value: "c" }, body: { case: "bytes", value: new Uint8Array([128]) } },
    { keyKind: { case: "key", value: "d" }, headers: [{ name: "not a token" }] },
  ],
});
assert.deepEqual(sent.results.slice(0, 3).map((r) => r.receipt.offset), [0n, 1n, 2n]);
assert.equal(sent.results[3].problem.reason, "BAD_HEADER");
const repeat = await publish.publish({ topic, messages: [{ keyKind: { case: "key", value: "a" }, id: "1", body: { case: "text", value: "grüß" }, headers: [
  { name: "h", valueKind: { case: "value", value: "x" } }, { name: "h", valueKind: { case: "valueBytes", value: new Uint8Array([0, 255]) } } ] }] });
assert.equal(repeat.results[0].receipt.duplicate, true);
assert.equal(repeat.results[0].receipt.offset, 0n);

const got = await receive();
assert.equal(got.length, 3);
assert.deepEqual(got[0].message.keyKind, { case: "key", value: "a" });
assert.deepEqual(got[0].message.body, { case: "text", value: "grüß" });
assert.deepEqual(got[0].message.headers.map((h) => h.name), ["h", "h"]);
assert.deepEqual([...got[0].message.headers[1].valueKind.value], [0, 255]);
assert.deepEqual([...got[1].message.keyKind.value], [255, 0]);
assert.equal(got[1].message.body.case, "json");
assert.deepEqual(toJson(ValueSchema, got[1].message.body.value), { n: 1.5, list: [true, null, "x"] });
assert.deepEqual([...got[2].message.body.value], [128]);

// Asked again: the same deliveries, tokens and attempts.
assert.deepEqual((await receive()).map((d) => [d.token, d.attempt]), got.map((d) => [d.token, d.attempt]));

assert.equal((await settle(got[0], SettleAction.ACK)).problem, undefined);
assert.equal((await settle(got[0], SettleAction.ACK)).problem, undefined, "a repeated ack succeeds");
assert.equal((await settle(got[1], SettleAction.ACK)).problem, undefined);
assert.equal((await settle(got[2], SettleAction.NACK, { reason: "first" })).problem, undefined);
const [second] = await receive();
assert.equal(second.attempt, 2);
assert.equal((await settle(got[2], SettleAction.ACK)).problem.reason, "STALE_DELIVERY");
assert.equal((await settle(second, SettleAction.NACK, { reason: "second" })).deadLettered, true);

const list = await dead.listDeadLetters({ topic, group: "g" });
assert.equal(list.total, 1n);
assert.equal(list.deadLetters[0].reason, "second");
const one = await dead.getDeadLetter({ topic, group: "g", which: { which: { case: "place", value: { partition: 0, offset: 2n } } } });
assert.deepEqual(one.deadLetter.history.map((h) => h.reason), ["first", "second"]);
assert.equal((await dead.replayDeadLetters({ topic, group: "g", which: { which: { case: "all", value: true } } })).replayed, 1n);
const [replayed] = await receive();
assert.equal(replayed.replayed, true);
assert.equal((await settle(replayed, SettleAction.ACK)).problem, undefined);

const info = await groups.describeGroup({ topic, group: "g" });
assert.equal(info.counts.acked, 3n);
assert.equal(info.counts.lag, 0n);
const life = await trace.trace({ topic, which: { case: "place", value: { partition: 0, offset: 2n } } });
assert.ok(life.messages[0].events.some((e) => e.what === "dead-lettered"), "trace shows the dead letter");

// A server stream: deliveries come as they are published, settled beside it.
const sub = { topic, group: "stream", member: "tab" };
const stop = new AbortController();
let session, seen = [], last;
for await (const frame of consume.subscribe({ ...sub, createGroup: true, window: 2, bodyFormat: BodyFormat.JSON }, { signal: stop.signal })) {
  if (!session) {
    session = frame.session;
    assert.ok(session, "the first frame has the session");
    assert.equal(frame.assignment.shares.length, 1);
    assert.equal(frame.deliveries.length, 0);
  }
  for (const d of frame.deliveries) {
    seen.push(d.offset);
    const res = await consume.settle({ topic, group: "stream", member: "tab", session, settlements: [{ token: d.token, action: SettleAction.ACK }] });
    assert.equal(res.results[0].problem, undefined);
  }
  if (seen.length === 3 && last === undefined) {
    await publish.publish({ topic, messages: [{ keyKind: { case: "key", value: "late" }, body: { case: "text", value: "while it is open" } }] });
    last = 3n;
  }
  if (seen.length === 4) {
    await consume.leave({ ...sub, session });
  }
}
assert.deepEqual(seen, [0n, 1n, 2n, last]);
assert.equal((await groups.describeGroup({ topic, group: "stream" })).counts.acked, 4n);

// A page that goes away is a member that crashed: what it held comes again.
await publish.publish({ topic, messages: [{ keyKind: { case: "key", value: "last" }, body: { case: "text", value: "x" } }] });
await assert.rejects(async () => {
  for await (const frame of consume.subscribe({ ...sub, window: 1 }, { signal: stop.signal })) {
    if (frame.deliveries.length > 0) {
      assert.equal(frame.deliveries[0].attempt, 1);
      stop.abort();
    }
  }
}, (err) => ConnectError.from(err).code === Code.Canceled);
const again = await consume.receive({ ...sub, member: "other", waitMs: 10000n });
assert.equal(again.deliveries[0].attempt, 2);
assert.equal((await problem(async () => { for await (const _ of consume.subscribe({ ...sub, group: "nobody" })); })).reason, "UNKNOWN_GROUP");
assert.equal((await publish.route({ topic })).partitions.length, 1);

assert.deepEqual(await problem(() => topics.describeTopic({ topic: "nowhere" })), { code: Code.NotFound, reason: "UNKNOWN_TOPIC", field: "topic" });
assert.deepEqual(await problem(() => topics.createTopic({ topic: "../etc" })), { code: Code.InvalidArgument, reason: "BAD_NAME", field: "topic" });
assert.deepEqual(await problem(() => topics.deleteTopic({ topic, confirm: "no" })), { code: Code.FailedPrecondition, reason: "NOT_CONFIRMED", field: "confirm" });
await topics.deleteTopic({ topic, confirm: topic });
assert.equal((await problem(() => topics.describeTopic({ topic }))).reason, "UNKNOWN_TOPIC");
console.log("ok");
