import { createClient, type Client, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { bad, number, object, string, whole } from "./check.js";
import { fromThrown, StrandMQError } from "./errors.js";
import type { Delivery, Settled } from "./delivery.js";
import { ConsumeService, type SettleAction } from "./gen/strandmq/v1/consume_pb.js";
import { PublishService } from "./gen/strandmq/v1/publish_pb.js";
import type { Message } from "./message.js";
import { publishAll, type Outcome, type PublishOptions, type Receipt } from "./publish.js";
import { settler, subscribe, type SubscribeOptions } from "./subscribe.js";

export interface Options {
  /** How long calls are made again while that may help. Default 10 s. */
  retryForMs?: number;
  /** How long one call that publishes may take. Default 30 s. */
  publishTimeoutMs?: number;
  /** How long one call that settles may take. Default 10 s. */
  settleTimeoutMs?: number;
}

/** The URL of a broker, which has to be one. */
function address(to: string): string {
  if (to.startsWith("/") && "location" in globalThis) return to; // of the page's own origin
  if (!URL.canParse(to) || !/^https?:$/.test(new URL(to).protocol)) {
    throw new StrandMQError("BAD_VALUE", `${JSON.stringify(to)} is no URL of a broker, such as http://127.0.0.1:7171`, "to");
  }
  return to;
}

/** A transport over fetch that speaks Connect: for browsers, and Node without more. */
export function connectTransport(baseUrl: string): Transport {
  return createConnectTransport({ baseUrl, useBinaryFormat: true });
}

/** A transport over fetch that speaks gRPC-Web. */
export function grpcWebTransport(baseUrl: string): Transport {
  return createGrpcWebTransport({ baseUrl });
}

/** Publishes to a broker and consumes from it. Everything that it throws is a StrandMQError. */
export class StrandMQ {
  private readonly publishing: Client<typeof PublishService>;
  private readonly consuming: Client<typeof ConsumeService>;
  private readonly retryForMs: number;
  private readonly publishTimeoutMs: number;
  private readonly settleTimeoutMs: number;

  /** @param to the broker's URL, for Connect over fetch, or another transport. */
  constructor(to: string | Transport, options: Options = {}) {
    object(options, "options", ["retryForMs", "publishTimeoutMs", "settleTimeoutMs"]);
    const { retryForMs = 10_000, publishTimeoutMs = 30_000, settleTimeoutMs = 10_000 } = options;
    number(retryForMs, "retryForMs");
    number(publishTimeoutMs, "publishTimeoutMs");
    number(settleTimeoutMs, "settleTimeoutMs");
    const transport = typeof to === "string" ? connectTransport(address(to)) : to;
    if (typeof transport?.unary !== "function") throw bad("to", to, "the broker's URL, or a transport");
    this.publishing = createClient(PublishService, transport);
    this.consuming = createClient(ConsumeService, transport);
    this.retryForMs = retryForMs;
    this.publishTimeoutMs = publishTimeoutMs;
    this.settleTimeoutMs = settleTimeoutMs;
  }

  /**
   * Stores one message; it resolves when that is on disk. Messages of one key
   * keep their order when each waits for the one before, or with publishAll.
   * One with an id is safe to publish again.
   */
  async publish(topic: string, message: Message, options: PublishOptions = {}): Promise<Receipt> {
    const [outcome] = await this.publishAll(topic, [message], options);
    if (!outcome?.receipt) throw outcome?.error ?? new StrandMQError("NO_ANSWER", "no result came");
    return outcome.receipt;
  }

  /** Stores messages of one topic, those of one key in their order; each has an outcome of its own. */
  async publishAll(topic: string, messages: readonly Message[], options: PublishOptions = {}): Promise<Outcome[]> {
    string(topic, "topic");
    if (!Array.isArray(messages)) throw bad("messages", messages, "a list of messages");
    object(options, "options", ["signal", "retryForMs", "inOrder", "timeoutMs"]);
    if (options.retryForMs !== undefined) number(options.retryForMs, "retryForMs");
    if (options.timeoutMs !== undefined) number(options.timeoutMs, "timeoutMs");
    try {
      return await publishAll(this.publishing, topic, messages, { retryForMs: this.retryForMs, timeoutMs: this.publishTimeoutMs, ...options });
    } catch (thrown) {
      throw fromThrown(thrown);
    }
  }

  /** Deliveries as they come, for a for await loop: see SubscribeOptions. */
  subscribe(options: SubscribeOptions): AsyncGenerator<Delivery, void, undefined> {
    object(options, "options", ["topic", "group", "member", "createGroup", "window", "signal", "retryForMs", "settleTimeoutMs", "onReconnect"]);
    string(options.topic, "topic");
    string(options.group, "group");
    if (options.member !== undefined) string(options.member, "member");
    if (options.window !== undefined) whole(options.window, "window", 1);
    if (options.retryForMs !== undefined) number(options.retryForMs, "retryForMs");
    if (options.settleTimeoutMs !== undefined) number(options.settleTimeoutMs, "settleTimeoutMs");
    return subscribe(this.consuming, { retryForMs: this.retryForMs, settleTimeoutMs: this.settleTimeoutMs, ...options });
  }

  /** Settles a delivery by its token, also one that another program received. */
  settle(topic: string, group: string, token: string, action: SettleAction, delayMs = 0, reason = ""): Promise<Settled> {
    return settler(this.consuming, topic, group, this.retryForMs, this.settleTimeoutMs)(token, action, delayMs, reason);
  }
}
