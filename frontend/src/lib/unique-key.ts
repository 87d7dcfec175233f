/** 128 random bits in hex. `crypto.randomUUID` exists only on HTTPS and localhost; a stack on a LAN may be neither. */
export function uniqueKey(): string {
  const bits = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bits, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
