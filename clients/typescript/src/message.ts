import { create } from "@bufbuild/protobuf";
import { StrandMQError } from "./errors.js";
import { HeaderSchema, MessageSchema, type Message as WireMessage } from "./gen/strandmq/v1/message_pb.js";

/** Text, or any bytes. */
export type Data = string | Uint8Array;

/** What is published. */
export interface Message {
  /** Messages of one key are handled in order, one at a time. None: no order. */
  key?: Data;
  /** The publisher's own id. Within a key it is stored once, so sending it again is safe. */
  id?: string;
  /** Names may repeat, and the order is kept. */
  headers?: Iterable<readonly [name: string, value: Data]>;
  /** The body, as it is stored. */
  body?: Data;
  /** A value whose JSON is the body. */
  json?: unknown;
}

/** The UTF-8 of s; half of a surrogate pair has none, and would become a replacement character. */
function text(s: string, field: string, reason: string): string {
  if (!s.isWellFormed()) throw new StrandMQError(reason, `${field} has half of a surrogate pair, which is no text: send bytes`, field);
  return s;
}

function data<S extends string, B extends string>(d: Data, asText: S, asBytes: B, field: string, reason: string) {
  return typeof d === "string" ? { case: asText, value: text(d, field, reason) } : { case: asBytes, value: d };
}

export function toWire(m: Message): WireMessage {
  if (m.body !== undefined && m.json !== undefined) throw new StrandMQError("BAD_BODY", "a message has either a body or json", "json");
  const body = m.json === undefined ? m.body : JSON.stringify(m.json);
  if (m.json !== undefined && body === undefined) throw new StrandMQError("BAD_BODY", "json is nothing that JSON has, such as a function", "json");
  return create(MessageSchema, {
    keyKind: m.key === undefined ? undefined : data(m.key, "key", "keyBytes", "key", "BAD_KEY"),
    id: text(m.id ?? "", "id", "BAD_ID"),
    headers: Array.from(m.headers ?? [], ([name, value]) =>
      create(HeaderSchema, { name, valueKind: data(value, "value", "valueBytes", "headers", "BAD_HEADER") }),
    ),
    body: body === undefined ? undefined : data(body, "text", "bytes", "body", "BAD_BODY"),
  });
}
