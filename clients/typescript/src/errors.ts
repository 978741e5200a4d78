import { Code, ConnectError } from "@connectrpc/connect";
import { ProblemSchema, type Problem } from "./gen/strandmq/v1/message_pb.js";
import type { BrokerReason } from "./reasons.js";

/**
 * Why something was refused: a reason of docs/errors.md, one that a newer broker
 * added, or NO_ANSWER: the broker was not reached, or its answer was lost, so
 * what was asked may have happened. In a browser that is also what a page sees
 * whose origin the broker does not allow.
 */
export type Reason = BrokerReason | "NO_ANSWER" | (string & {});

/** Where an error comes from. */
export interface StrandMQErrorOptions extends ErrorOptions {
  requestId?: string;
}

/** A refusal. `reason` is for programs, `message` for people. */
export class StrandMQError extends Error {
  override readonly name = "StrandMQError";
  /** The id of the call, under which the broker's log tells of it. Empty: no broker heard it. */
  readonly requestId: string;

  constructor(
    readonly reason: Reason,
    message: string,
    /** The field of the request at fault, such as messages[3].key. */
    readonly field = "",
    /** How long to wait before the same request may succeed. 0: it will not, unchanged. */
    readonly retryAfterMs = 0,
    options: StrandMQErrorOptions = {},
  ) {
    const { requestId = "", ...rest } = options;
    super(reason === "INTERNAL" && !message.includes(requestId) ? `${message} (request id ${requestId})` : message, rest);
    this.requestId = requestId;
  }

  /** The same request may succeed later. */
  get retryable(): boolean {
    return this.retryAfterMs > 0 || this.reason === "NO_ANSWER";
  }

  /** What was asked may have happened all the same. */
  get outcomeUnknown(): boolean {
    return unknownOutcome.has(this.reason);
  }
}

const unknownOutcome = new Set<string>(["NO_ANSWER", "OUTCOME_UNKNOWN", "DEADLINE", "CANCELED"]);

/** Codes that a proxy or the protocol means for good. */
const final = new Set([Code.Unauthenticated, Code.PermissionDenied, Code.Unimplemented, Code.NotFound, Code.ResourceExhausted]);

export function fromProblem(p: Problem): StrandMQError {
  return new StrandMQError(p.reason, p.message, p.field, Number(p.retryAfterMs), { requestId: p.requestId });
}

/** Makes a StrandMQError of whatever a call threw. */
export function fromThrown(thrown: unknown): StrandMQError {
  if (thrown instanceof StrandMQError) return thrown;
  const e = ConnectError.from(thrown);
  const [problem] = e.findDetails(ProblemSchema);
  const options = { cause: thrown, requestId: problem?.requestId || (e.metadata.get("x-request-id") ?? "") };
  if (problem) return new StrandMQError(problem.reason, problem.message, problem.field, Number(problem.retryAfterMs), options);
  if (e.code === Code.Canceled) return new StrandMQError("CANCELED", "the caller gave up", "", 0, options);
  if (e.code === Code.DeadlineExceeded) return new StrandMQError("DEADLINE", "the time of the call ran out before the answer", "", 0, options);
  if (final.has(e.code)) return new StrandMQError(Code[e.code].replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase(), e.rawMessage, "", 0, options);
  return new StrandMQError("NO_ANSWER", `no answer from the broker (${e.rawMessage}): is it running, and is this page's origin allowed?`, "", 0, options);
}
