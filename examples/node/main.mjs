// Publishes, receives and settles over gRPC, with the protocol files as they are.
// STRANDMQ_SERVER is the broker's URL.
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const server = new URL(process.env.STRANDMQ_SERVER ?? 'http://127.0.0.1:7171').host;
const files = ['publish', 'consume', 'admin'].map((name) => `strandmq/v1/${name}.proto`);
const { strandmq: { v1 } } = grpc.loadPackageDefinition(loader.loadSync(files, {
  includeDirs: [fileURLToPath(new URL('../../proto', import.meta.url))],
  keepCase: true, longs: String, enums: String, oneofs: true, defaults: true, // an offset of 0 is one
}));

// A method of a service as a promise. Every call has a deadline: none waits for ever.
const client = (Service) => {
  const c = new Service(server, grpc.credentials.createInsecure());
  return new Proxy(c, {
    get: (_, method) => (request) => new Promise((done, failed) => {
      c[method](request, { deadline: Date.now() + 60_000 }, (err, answer) => (err ? failed(err) : done(answer)));
    }),
  });
};
const topics = client(v1.TopicService);
const publish = client(v1.PublishService);
const consume = client(v1.ConsumeService);

const topic = `example-node-${process.pid}`;
try {
  await topics.CreateTopic({ topic, partitions: 2 });
} catch (err) {
  if (err.code !== grpc.status.UNAVAILABLE) throw err;
  console.error(`no broker answers at ${server}: start one with 'strandmq serve', or set STRANDMQ_SERVER (${err.details})`);
  process.exit(1);
}

const messages = [
  { key: 'alice', id: 'a-1', text: 'twelve apples' },
  { key: 'alice', id: 'a-2', text: 'seven pears' },
  { key: 'bob', id: 'b-1', bytes: Buffer.from([0xff]) },
];
for (const round of ['stored', 'sent again']) { // under the same ids nothing is stored twice
  const { results } = await publish.Publish({ topic, messages });
  for (const { receipt, problem } of results) {
    if (problem) throw new Error(`${problem.reason}: ${problem.message}`);
    console.log(round, receipt.partition, receipt.offset, receipt.duplicate ? 'duplicate' : '');
  }
}

let acked = 0;
while (acked < messages.length) {
  const { deliveries } = await consume.Receive({
    topic, group: 'billing', member: 'm1', max_messages: 10, wait_ms: 20_000, create_group: true,
  });
  if (deliveries.length === 0) continue; // the wait ran out: ask again
  for (const d of deliveries) console.log('got', d.message.key, d.message.text ?? d.message.bytes);
  const { results } = await consume.Settle({
    topic, group: 'billing', settlements: deliveries.map((d) => ({ token: d.token, action: 'SETTLE_ACTION_ACK' })),
  });
  acked += results.filter((r) => !r.problem).length;
}

// The reason of a refusal is in the details; the code and the words are in the error.
try {
  await publish.Publish({ topic: 'nowhere', messages });
} catch (err) {
  console.log('refused with', grpc.status[err.code], '-', err.details);
}

await topics.DeleteTopic({ topic, confirm: topic });
console.log(`done: ${acked} acked`);
process.exit(0);
