import type { Client } from "@connectrpc/connect";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { string, whole } from "./check.js";
import { Delivery, type Settle } from "./delivery.js";
import { fromProblem, fromThrown, StrandMQError } from "./errors.js";
import type { ConsumeService } from "./gen/strandmq/v1/consume_pb.js";
import { BodyFormat } from "./gen/strandmq/v1/message_pb.js";
import { Backoff, retried, sleep } from "./retry.js";

export interface SubscribeOptions {
  topic: string;
  group: string;
  /** Unique within the group. Default: a name that nobody else has. */
  member?: string;
  /** Create the group with the default policy when there is none. */
  createGroup?: boolean;
  /**
   * How many deliveries may be unsettled. Default 16. What waits behind a slow
   * handler lapses at its deadline, and what a closed page had is charged an
   * attempt: keep it small.
   */
  window?: number;
  signal?: AbortSignal;
  /** How long settling is tried again. Default: that of the client. */
  retryForMs?: number;
  /** How long one call that settles may take. Default: that of the client. */
  settleTimeoutMs?: number;
  /** Told when the stream broke and another one is opened. */
  onReconnect?: (why: StrandMQError) => void;
}

/** A stream that lived so long did work, whatever it carried: the next one may be opened at once. */
const livedMs = 5_000;

/** How long a broker may be silent that has not said how often it sends something. */
const silentMs = 30_000;

/** What comes, until nothing has come for ms(). Time that the reader takes does not count. */
async function* heard<T>(frames: AsyncIterable<T>, ms: () => number): AsyncGenerator<T, void, undefined> {
  const it = frames[Symbol.asyncIterator]();
  for (;;) {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const silence = new Promise<never>((_, reject) => {
      const limit = ms();
      timer = setTimeout(() => reject(new StrandMQError("NO_ANSWER", `the broker has sent nothing for ${limit} ms`)), limit);
    });
    const next = await Promise.race([it.next(), silence]).finally(() => clearTimeout(timer));
    if (next.done) return;
    yield next.value;
  }
}

type Service = Client<typeof ConsumeService>;

/** settler settles deliveries of a group by their tokens. */
export function settler(service: Service, topic: string, group: string, retryForMs: number, timeoutMs: number): Settle {
  return async (token, action, delayMs = 0, reason = "") => {
    string(topic, "topic");
    string(group, "group");
    string(token, "token");
    string(reason, "reason");
    whole(delayMs, "delayMs");
    const settlements = [{ token, action, delayMs: BigInt(delayMs), reason }];
    return retried(async () => {
      const { results } = await service.settle({ topic, group, settlements }, { timeoutMs });
      const r = results[0];
      if (!r) throw new StrandMQError("NO_ANSWER", "no result came");
      if (r.problem) throw fromProblem(r.problem);
      return { deadLettered: r.deadLettered, deadline: r.deadline && timestampDate(r.deadline) };
    }, retryForMs);
  };
}

/**
 * Deliveries as they come. A broken stream is opened again, with another
 * session of the member; what was unsettled by then has lapsed and comes again.
 * Leaving the loop, or the signal, leaves the group: what was not settled goes
 * back, uncharged.
 */
export async function* subscribe(service: Service, o: SubscribeOptions): AsyncGenerator<Delivery, void, undefined> {
  const { topic, group, member = `ts-${crypto.randomUUID()}`, createGroup = false, window = 16, signal, retryForMs = 10_000, settleTimeoutMs = 10_000 } = o;
  const settle = settler(service, topic, group, retryForMs, settleTimeoutMs);
  const backoff = new Backoff();
  let session = "";
  const stop = new AbortController(); // ends the stream after the member left
  // The signal's way out is to leave; so the stream itself does not end by it.
  const leave = async () => {
    const left = session;
    session = "";
    try {
      if (left) await service.leave({ topic, group, member, session: left }, { timeoutMs: 5_000 });
    } catch {
      // The stream's end tells the broker too, if at the cost of an attempt.
    }
    stop.abort();
  };
  let leaving: Promise<void> | undefined;
  const onAbort = () => void (leaving ??= leave());
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    while (!signal?.aborted) {
      let opened = Infinity;
      let silent = silentMs;
      const one = new AbortController(); // ends this stream, also one that is silent
      const end = () => one.abort();
      stop.signal.addEventListener("abort", end, { once: true });
      try {
        const request = { topic, group, member, createGroup, window, bodyFormat: BodyFormat.BYTES };
        for await (const frame of heard(service.subscribe(request, { signal: one.signal }), () => silent)) {
          if (frame.session) {
            session = frame.session;
            opened = Date.now();
            if (frame.sessionTimeoutMs > 0n) silent = Number(frame.sessionTimeoutMs);
          }
          if (frame.deliveries.length > 0) backoff.reset();
          for (const d of frame.deliveries) {
            if (signal?.aborted) break;
            yield new Delivery(d, settle);
          }
          if (signal?.aborted) break;
        }
        if (signal?.aborted) return;
        throw new StrandMQError("NO_ANSWER", "the stream ended");
      } catch (thrown) {
        if (signal?.aborted) return;
        session = "";
        const e = fromThrown(thrown);
        if (!e.retryable) throw e;
        if (Date.now() - opened > livedMs) backoff.reset();
        o.onReconnect?.(e);
        end();
        stop.signal.removeEventListener("abort", end);
        await sleep(backoff.wait(e), signal).catch(() => undefined);
      }
    }
  } finally {
    signal?.removeEventListener("abort", onAbort);
    await (leaving ??= leave());
  }
}
