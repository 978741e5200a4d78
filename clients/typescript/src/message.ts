import { create } from "@bufbuild/protobuf";
import { bad, object, string } from "./check.js";
import { StrandMQError } from "./errors.js";
import { HeaderSchema, MessageSchema, type Message as WireMessage } from "./gen/strandmq/v1/message_pb.js";

/** Text, or any bytes. */
export type Data = string | Uint8Array;

/** Text, or any bytes, also as an ArrayBuffer or another view of one. */
export type GivenData = Data | ArrayBuffer | ArrayBufferView;

/** What is published. */
export interface Message {
  /** Messages of one key are handled in order, one at a time. None: no order. */
  key?: GivenData;
  /** The publisher's own id. Within a key it is stored once, so sending it again is safe. */
  id?: string;
  /** Names may repeat, and the order is kept. */
  headers?: Iterable<readonly [name: string, value: GivenData]>;
  /** The body, as it is stored. */
  body?: GivenData;
  /** A value whose JSON is the body. */
  json?: unknown;
}

/** The UTF-8 of s; half of a surrogate pair has none, and would become a replacement character. */
function text(s: string, field: string, reason: string): string {
  if (!s.isWellFormed()) throw new StrandMQError(reason, `${field} has half of a surrogate pair, which is no text: send bytes`, field);
  return s;
}

function data<S extends string, B extends string>(d: GivenData, asText: S, asBytes: B, field: string, reason: string) {
  if (typeof d === "string") return { case: asText, value: text(d, field, reason) };
  if (d instanceof Uint8Array) return { case: asBytes, value: d };
  if (ArrayBuffer.isView(d)) return { case: asBytes, value: new Uint8Array(d.buffer, d.byteOffset, d.byteLength) };
  if (Object.prototype.toString.call(d) === "[object ArrayBuffer]") return { case: asBytes, value: new Uint8Array(d) };
  throw bad(field, d, "a string, a Uint8Array or an ArrayBuffer");
}

/** The JSON of a value. What JSON has not is refused; JSON.stringify makes null of some of it. */
function jsonOf(v: unknown): string {
  const no = (what: string) => new StrandMQError("BAD_VALUE", `json has ${what}, which JSON has not: send a string, or leave it out`, "json");
  let out: string | undefined;
  try {
    out = JSON.stringify(v, (_, x: unknown) => {
      if (typeof x === "number" && !Number.isFinite(x)) throw no(String(x));
      if (typeof x === "bigint") throw no("a bigint");
      return x;
    });
  } catch (thrown) {
    if (thrown instanceof StrandMQError) throw thrown;
    throw new StrandMQError("BAD_VALUE", `json cannot be written: ${String(thrown)}`, "json", 0, { cause: thrown });
  }
  if (out === undefined) throw no(`a ${typeof v}`);
  return out;
}

function headerList(headers: unknown): (readonly [string, GivenData])[] {
  if (headers === undefined) return [];
  const want = 'pairs such as [["trace", "7"]]';
  if (typeof headers !== "object" || headers === null || !(Symbol.iterator in headers)) throw bad("headers", headers, want);
  return Array.from(headers as Iterable<unknown>, (pair) => {
    if (!Array.isArray(pair) || pair.length !== 2) throw bad("headers", pair, want);
    const [name, value] = pair as [string, GivenData];
    string(name, "headers");
    return [name, value] as const;
  });
}

const messageFields = ["key", "id", "headers", "body", "json"];

export function toWire(m: Message): WireMessage {
  object(m, "message", messageFields);
  if (m.id !== undefined) string(m.id, "id");
  if (m.body !== undefined && m.json !== undefined) throw new StrandMQError("BAD_BODY", "a message has either a body or json", "json");
  const body = m.json === undefined ? m.body : jsonOf(m.json);
  return create(MessageSchema, {
    keyKind: m.key === undefined ? undefined : data(m.key, "key", "keyBytes", "key", "BAD_KEY"),
    id: text(m.id ?? "", "id", "BAD_ID"),
    headers: headerList(m.headers).map(([name, value]) =>
      create(HeaderSchema, { name, valueKind: data(value, "value", "valueBytes", "headers", "BAD_HEADER") }),
    ),
    body: body === undefined ? undefined : data(body, "text", "bytes", "body", "BAD_BODY"),
  });
}
