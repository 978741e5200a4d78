import { timestampDate } from "@bufbuild/protobuf/wkt";
import { SettleAction, type Delivery as WireDelivery } from "./gen/strandmq/v1/consume_pb.js";
import { StrandMQError } from "./errors.js";
import type { Data } from "./message.js";

/** What became of a settlement. */
export interface Settled {
  /** For a nack or reject: the message is now a dead letter. */
  deadLettered: boolean;
  /** For an extend: the new deadline. */
  deadline?: Date;
}

export type Settle = (token: string, action: SettleAction, delayMs?: number, reason?: string) => Promise<Settled>;

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * One hand-out of one message to one member. It lapses at its deadline unless
 * it is settled or extended; then the message comes again, to whichever member.
 * Settling is tried again while that may help, and is safe to repeat; once the
 * delivery is no longer the current one it is refused with STALE_DELIVERY.
 */
export class Delivery {
  constructor(
    private readonly wire: WireDelivery,
    private readonly settle: Settle,
  ) {}

  /** The body's bytes. */
  get body(): Uint8Array {
    const b = this.wire.message?.body;
    if (b?.case === "bytes") return b.value;
    return new TextEncoder().encode(b?.case === "text" ? b.value : "");
  }

  /** The body as text; BAD_BODY when it is not UTF-8. */
  text(): string {
    try {
      return utf8.decode(this.body);
    } catch (thrown) {
      throw new StrandMQError("BAD_BODY", `the body of offset ${this.offset} is not UTF-8`, "body", 0, { cause: thrown });
    }
  }

  /** The body as JSON; BAD_BODY when it is none. */
  json<T = unknown>(): T {
    const text = this.text();
    try {
      return JSON.parse(text) as T;
    } catch (thrown) {
      throw new StrandMQError("BAD_BODY", `the body of offset ${this.offset} is not JSON: ${(thrown as Error).message}`, "body", 0, { cause: thrown });
    }
  }

  get key(): Data | undefined {
    return this.wire.message?.keyKind.value;
  }
  /** The publisher's id. */
  get id(): string {
    return this.wire.message?.id ?? "";
  }
  get headers(): [name: string, value: Data][] {
    return (this.wire.message?.headers ?? []).map((h) => [h.name, h.valueKind.value ?? ""]);
  }
  /** When the broker accepted the message. */
  get publishTime(): Date | undefined {
    return this.wire.message?.publishTime && timestampDate(this.wire.message.publishTime);
  }
  get topic(): string {
    return this.wire.topic;
  }
  get partition(): number {
    return this.wire.partition;
  }
  get offset(): bigint {
    return this.wire.offset;
  }
  /** From 1, counted in the log. */
  get attempt(): number {
    return this.wire.attempt;
  }
  get deadline(): Date | undefined {
    return this.wire.deadline && timestampDate(this.wire.deadline);
  }
  /** Only grows, within the group and partition: what a side effect can be fenced with. */
  get fence(): bigint {
    return this.wire.fence;
  }
  /** It was replayed from the group's dead letters. */
  get replayed(): boolean {
    return this.wire.replayed;
  }
  /** The delivery token: whoever has it may settle the delivery. */
  get token(): string {
    return this.wire.token;
  }

  /** Handled: it never comes to this group again. */
  ack(): Promise<Settled> {
    return this.settle(this.token, SettleAction.ACK);
  }
  /** Failed: tried again after the group's backoff, or after delayMs; dead when the attempts are used up. */
  nack(reason = "", delayMs = 0): Promise<Settled> {
    return this.settle(this.token, SettleAction.NACK, delayMs, reason);
  }
  /** A dead letter now, without further attempts. */
  reject(reason = ""): Promise<Settled> {
    return this.settle(this.token, SettleAction.REJECT, 0, reason);
  }
  /** Moves the deadline to ms from now; 0: by the group's policy. */
  extend(ms = 0): Promise<Settled> {
    return this.settle(this.token, SettleAction.EXTEND, ms);
  }
  /** Given back unstarted: the attempt is not charged. */
  release(): Promise<Settled> {
    return this.settle(this.token, SettleAction.RELEASE);
  }
}
