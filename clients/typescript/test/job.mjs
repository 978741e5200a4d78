// What a program does with the client, over whichever transport: run in Node
// and in a browser's page. The topic is there and empty.
function same(got, want, what) {
  const text = (v) => JSON.stringify(v, (_, x) => (typeof x === "bigint" ? `${x}n` : x));
  if (text(got) !== text(want)) throw new Error(`${what}: ${text(got)}, want ${text(want)}`);
}

/** refused calls fn, which must be refused for the reason. */
export async function refused(reason, fn) {
  let got = "nothing";
  try {
    await fn();
  } catch (e) {
    got = e.name === "StrandMQError" ? e.reason : String(e);
  }
  same(got, reason, "it was refused for");
}

async function next(deliveries) {
  const { value, done } = await deliveries.next();
  same(done, false, "the stream ended");
  return value;
}

export async function job(mq, topic) {
  const group = "g";
  const first = { key: "a", id: "1", json: { n: 1.5, list: [true, null] }, headers: [["h", "x"], ["h", new Uint8Array([0, 255])]] };
  same(await mq.publish(topic, first), { partition: 0, offset: 0n, duplicate: false }, "the receipt");
  same((await mq.publish(topic, first)).duplicate, true, "published again");
  const many = await mq.publishAll(topic, [{ key: new Uint8Array([255, 0]), body: "grüß" }, { key: "c", headers: [["not a token", ""]] }, { key: "d", body: new Uint8Array([128]) }]);
  same(many.map((o) => o.receipt?.offset ?? o.error.reason), [1n, "BAD_HEADER", 2n], "outcomes");
  await refused("UNKNOWN_TOPIC", () => mq.publish("nowhere", { body: "x" }));
  const thrown = await mq.publish("nowhere", { body: "x" }).catch((e) => e);
  same(/^[a-z2-7]{16}$/.test(thrown.requestId), true, `the request id ${thrown.requestId}`);
  await refused("ID_REUSED", () => mq.publish(topic, { key: "a", id: "1", body: "another" }));
  await refused("BAD_KEY", () => mq.publish(topic, { key: "a\ud800" }));
  await refused("UNKNOWN_GROUP", () => mq.subscribe({ topic, group: "nobody" }).next());
  same(/^[a-z2-7]{16}$/.test(many[1].error.requestId), true, "the request id of one of many");

  const subscribed = { topic, group, member: "m", createGroup: true };
  const deliveries = mq.subscribe({ ...subscribed, window: 3 });
  const [one, two, three] = [await next(deliveries), await next(deliveries), await next(deliveries)];
  same([one.key, one.id, one.json(), one.attempt], ["a", "1", first.json, 1], "the first");
  same(one.headers.map(([n, v]) => [n, [...v]]), [["h", ["x"]], ["h", [0, 255]]], "its headers");
  same([[...two.key], two.text(), [...three.body]], [[255, 0], "grüß", [128]], "the others");
  await one.ack();
  await one.ack(); // repeated, it is a success
  await two.nack("not now", 1);
  await three.reject("never");
  const again = await next(deliveries);
  same([again.offset, again.attempt], [1n, 2], "what was nacked");
  await refused("STALE_DELIVERY", () => two.ack());
  await again.extend();
  await again.ack();

  // What is published while the stream is open comes; leaving gives it back, uncharged.
  await mq.publish(topic, { key: "late", body: "x" });
  same((await next(deliveries)).text(), "x", "while it is open");
  await deliveries.return();
  const stop = new AbortController();
  const seen = [];
  for await (const d of mq.subscribe({ ...subscribed, signal: stop.signal })) {
    seen.push([d.offset, d.attempt]);
    await d.ack();
    stop.abort();
  }
  same(seen, [[3n, 1]], "after the loop was left");
  return "ok";
}
