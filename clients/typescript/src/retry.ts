import { fromThrown, type StrandMQError } from "./errors.js";

/** Waits between attempts: doubling from first to most, with jitter. */
export class Backoff {
  private next: number;

  constructor(
    private readonly first = 100,
    private readonly most = 5_000,
  ) {
    this.next = first;
  }

  reset(): void {
    this.next = this.first;
  }

  /** The next wait, at least as long as the broker asked for. */
  wait(e: StrandMQError): number {
    const ms = this.next * (0.5 + Math.random() / 2);
    this.next = Math.min(this.next * 2, this.most);
    return Math.max(ms, e.retryAfterMs);
  }
}

/** Resolves after ms, or throws when the signal is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const gaveUp = () => {
      clearTimeout(timer);
      reject(fromThrown(new DOMException("aborted", "AbortError")));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", gaveUp);
      resolve();
    }, ms);
    if (signal?.aborted) gaveUp();
    else signal?.addEventListener("abort", gaveUp, { once: true });
  });
}

/** The wait before another attempt, cut where the time is over, when the last one is made;
 * below 0: that would be sooner than the broker asked for, or there is no time. */
export function inTime(ms: number, e: StrandMQError, end: number): number {
  const left = end - Date.now();
  if (left <= 0 || left < e.retryAfterMs) return -1;
  return Math.min(ms, left);
}

/** Calls until it succeeds, fails in a way that does not pass, or forMs are over. */
export async function retried<T>(call: () => Promise<T>, forMs: number, signal?: AbortSignal, safe: (e: StrandMQError) => boolean = () => true): Promise<T> {
  const end = Date.now() + forMs;
  const backoff = new Backoff();
  for (;;) {
    try {
      return await call();
    } catch (thrown) {
      const e = fromThrown(thrown);
      if (!e.retryable || !safe(e) || signal?.aborted) throw e;
      const ms = inTime(backoff.wait(e), e, end);
      if (ms < 0) throw e;
      await sleep(ms, signal);
    }
  }
}
