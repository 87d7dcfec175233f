import { uniqueKey } from "@/lib/unique-key";

/** Keys of calls that have no answer yet: a call that is repeated carries the key of its first try. */
const unanswered = new Map<string, string>();
const blobs = new WeakMap<Blob, string>();

/** What two tries of one call have in common: its address and what it sends. */
export function identityOf(url: string, json: unknown, body: Blob | undefined): string {
  return `${url}\n${body ? blobIdentity(body) : json === undefined ? "" : JSON.stringify(json)}`;
}

/** Returns the `Idempotency-Key` of a call: the server makes nothing twice for one key. */
export function retryKey(identity: string): string {
  const known = unanswered.get(identity);
  if (known) return known;
  const key = uniqueKey();
  unanswered.set(identity, key);
  return key;
}

/** The server has answered: the same call from here on is a new wish. A 5xx says nothing about what was done. */
export function forgetRetryKey(identity: string, status: number): void {
  if (status < 500) unanswered.delete(identity);
}

function blobIdentity(body: Blob): string {
  const known = blobs.get(body) ?? uniqueKey();
  blobs.set(body, known);
  return known;
}
