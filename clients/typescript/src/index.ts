export { StrandMQ, connectTransport, grpcWebTransport, type Options } from "./client.js";
export { Delivery, type Settled } from "./delivery.js";
export { StrandMQError, type Reason, type StrandMQErrorOptions } from "./errors.js";
export { brokerReasons, type BrokerReason } from "./reasons.js";
export type { Data, GivenData, Message } from "./message.js";
export type { Outcome, PublishOptions, Receipt } from "./publish.js";
export type { SubscribeOptions } from "./subscribe.js";
export { SettleAction } from "./gen/strandmq/v1/consume_pb.js";
