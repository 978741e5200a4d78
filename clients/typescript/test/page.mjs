// What the browser test's pages run.
import { StrandMQ, connectTransport, grpcWebTransport } from "../dist/index.js";
import { job, refused } from "./job.mjs";

const transports = { connect: connectTransport, "grpc-web": grpcWebTransport };

globalThis.run = async (url, kind, topic) => job(new StrandMQ(transports[kind](url)), topic);

/** A page that may not: it neither publishes nor reads. */
globalThis.runRefused = async (url, kind, topic) => {
  const mq = new StrandMQ(transports[kind](url), { retryForMs: 0 });
  await refused("NO_ANSWER", () => mq.publish(topic, { key: "a", id: "1", body: "x" }));
  const stop = new AbortController();
  let why;
  for await (const _ of mq.subscribe({ topic, group: "g", createGroup: true, signal: stop.signal, onReconnect: (e) => ((why = e.reason), stop.abort()) })) {
    return "it reads";
  }
  return why === "NO_ANSWER" ? "ok" : `subscribe ended with ${why}`;
};

/** Ways round: they answer nothing that a page can read. */
globalThis.runAround = async (url, topic) => {
  const path = `${url}/strandmq.v1.PublishService/Publish`;
  const body = JSON.stringify({ topic, messages: [{ key: "a", text: "x" }] });
  for (const [type, mode] of [["text/plain", "no-cors"], ["application/json", "no-cors"], ["application/x-www-form-urlencoded", "cors"]]) {
    const res = await fetch(path, { method: "POST", mode, headers: { "content-type": type }, body }).catch(() => undefined);
    if (res && (await res.text()) !== "") return `${type}, ${mode}: it reads an answer`;
  }
  navigator.sendBeacon(path, body);
  return "ok";
};

/** What no page of another origin may do, listed or not. */
globalThis.runDelete = async (url, topic) =>
  fetch(`${url}/strandmq.v1.TopicService/DeleteTopic`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ topic, confirm: topic }) }).then(
    (res) => `it got ${res.status}`,
    () => "ok",
  );
