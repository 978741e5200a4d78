// The client in Node, over gRPC and over fetch: node node.mjs BROKER. Topics
// node-grpc, node-connect, node-grpc-web and orders are there.
import assert from "node:assert/strict";
import { readFile, writeFile, rm } from "node:fs/promises";
import { StrandMQ, connectTransport, grpcWebTransport } from "../dist/index.js";
import { grpcTransport } from "../dist/node.js";
import { job } from "./job.mjs";

const [broker] = process.argv.slice(2);
for (const [name, transport] of Object.entries({ grpc: grpcTransport, connect: connectTransport, "grpc-web": grpcWebTransport })) {
  assert.equal(await job(new StrandMQ(transport(broker)), `node-${name}`), "ok", name);
  console.log("node", name, "ok");
}

// The example of the README, as it stands there but for the address.
const page = await readFile(new URL("../README.md", import.meta.url), "utf8");
const example = /```ts\n(.*?)```/s.exec(page)[1].replace("http://127.0.0.1:7171", broker);
const file = new URL(`../dist/readme-${process.pid}.mjs`, import.meta.url);
await writeFile(file, example);
await import(file).finally(() => rm(file));
console.log("readme ok");
process.exit(0); // gRPC's connection stays open a while
