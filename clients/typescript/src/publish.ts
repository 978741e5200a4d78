import type { Client } from "@connectrpc/connect";
import { fromProblem, fromThrown, StrandMQError } from "./errors.js";
import type { PublishResult, PublishService } from "./gen/strandmq/v1/publish_pb.js";
import { toWire, type Message } from "./message.js";
import { Backoff, inTime, retried, sleep } from "./retry.js";

/** Where a message is stored, fsynced by a majority of its replicas. */
export interface Receipt {
  partition: number;
  offset: bigint;
  /** It had been stored before, under the same id. */
  duplicate: boolean;
}

/** What became of one message of many. */
export type Outcome = { receipt: Receipt; error?: undefined } | { receipt?: undefined; error: StrandMQError };

export interface PublishOptions {
  signal?: AbortSignal;
  /** How long to try again what passes with time. Default: that of the client. */
  retryForMs?: number;
  /** Store nothing behind a message that is refused for good. */
  inOrder?: boolean;
  /** How long one call may take. Default: that of the client. */
  timeoutMs?: number;
}

/**
 * Publishes messages of one topic, at most 1,000 and 4 MiB, and tries again what
 * was refused in a way that passes. Nothing is sent again that may be stored
 * already, unless it has an id, which keeps it from being stored twice.
 *
 * The broker stores messages of one key in the order of a call, and refuses
 * with NOT_SENT what must stand behind one that it refused for now. So what is
 * tried again goes together and in order.
 */
export async function publishAll(
  service: Client<typeof PublishService>,
  topic: string,
  messages: readonly Message[],
  { signal, retryForMs = 10_000, inOrder = false, timeoutMs = 30_000 }: PublishOptions,
): Promise<Outcome[]> {
  const wire = messages.map((m, i) => {
    try {
      return toWire(m);
    } catch (thrown) {
      if (messages.length === 1 || !(thrown instanceof StrandMQError)) throw thrown;
      throw new StrandMQError(thrown.reason, `message ${i}: ${thrown.message}`, `messages[${i}].${thrown.field}`, 0, { cause: thrown });
    }
  });
  const outcomes = new Array<Outcome>(messages.length);
  const end = Date.now() + retryForMs;
  const backoff = new Backoff();
  for (let left = wire.map((_, i) => i); left.length > 0; ) {
    const again = (e: StrandMQError, i: number) => e.retryable && (!e.outcomeUnknown || wire[i]!.id !== "");
    let results: PublishResult[];
    try {
      ({ results } = await retried(
        () => service.publish({ topic, messages: left.map((i) => wire[i]!), inOrder }, { signal, timeoutMs }),
        Math.max(0, end - Date.now()),
        signal,
        (e) => left.every((i) => again(e, i)),
      ));
      if (results.length !== left.length) throw new StrandMQError("NO_ANSWER", `${results.length} results for ${left.length} messages`);
    } catch (thrown) {
      if (!outcomes[left[0]!]) throw thrown; // the first call: nothing is known of any
      const error = fromThrown(thrown);
      for (const i of left) outcomes[i] = { error };
      break;
    }
    const passing: number[] = [];
    let ms = 0;
    let unsure = false;
    left.forEach((i, n) => {
      const outcome = told(results[n]!);
      outcomes[i] = outcome;
      if (outcome.error && again(outcome.error, i)) {
        passing.push(i);
        ms = Math.max(ms, outcome.error.retryAfterMs);
      } else if (outcome.error?.outcomeUnknown) {
        unsure = true;
      }
    });
    // One that may be stored, and has no id, is the caller's to decide about; what
    // stands behind it must not overtake it meanwhile.
    if (unsure || passing.length === 0) break;
    if (signal?.aborted) break;
    const asked = outcomes[passing.find((i) => outcomes[i]!.error!.retryAfterMs === ms)!]!.error!;
    ms = inTime(backoff.wait(asked), asked, end);
    if (ms < 0) break;
    await sleep(ms, signal).catch(() => undefined);
    if (signal?.aborted) break; // with what is known
    left = passing;
  }
  return outcomes;
}

function told(r: PublishResult): Outcome {
  if (r.problem) return { error: fromProblem(r.problem) };
  if (!r.receipt) return { error: new StrandMQError("NO_ANSWER", "neither a receipt nor a refusal came") };
  const { partition, offset, duplicate } = r.receipt;
  return { receipt: { partition, offset, duplicate } };
}
