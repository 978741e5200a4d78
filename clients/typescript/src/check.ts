import { StrandMQError } from "./errors.js";

// What a call is given is checked before anything is sent: a program in JavaScript has
// no compiler that does it, and what would be left out or become text is told instead.

function kindOf(v: unknown): string {
  if (v === null || v === undefined) return String(v);
  return typeof v === "object" ? v.constructor?.name ?? "an object" : `a ${typeof v}`;
}

/** Refuses a value that is not what the field takes. */
export function bad(field: string, v: unknown, want: string): StrandMQError {
  return new StrandMQError("BAD_VALUE", `${field} is ${kindOf(v)}: it has to be ${want}`, field);
}

/** An object with these fields and no others. */
export function object(v: unknown, field: string, fields: readonly string[]): void {
  if (typeof v !== "object" || v === null || Array.isArray(v) || ArrayBuffer.isView(v)) throw bad(field, v, `an object with ${fields.join(", ")}`);
  for (const name of Object.keys(v)) {
    if (!fields.includes(name)) throw new StrandMQError("BAD_VALUE", `${field} has the field ${JSON.stringify(name)}, which is none: there are ${fields.join(", ")}`, name);
  }
}

export function string(v: unknown, field: string): void {
  if (typeof v !== "string") throw bad(field, v, "a string");
}

/** Milliseconds, or another number from least on. */
export function number(v: unknown, field: string, least = 0): void {
  if (typeof v !== "number" || Number.isNaN(v) || v < least) throw new StrandMQError("BAD_VALUE", `${field} is ${String(v)}: it has to be a number of ${least} or more`, field);
}

/** A whole number from least on. */
export function whole(v: unknown, field: string, least = 0): void {
  if (!Number.isSafeInteger(v) || (v as number) < least) throw new StrandMQError("BAD_VALUE", `${field} is ${String(v)}: it has to be a whole number of ${least} or more`, field);
}
