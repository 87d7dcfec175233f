import { address } from "@/api/client";

/** A plain link: the session cookie goes with it, and the browser writes what the server decrypts straight to disk. */
export function archiveAddress(collection: "artifacts" | "checkpoints", id: string): string {
  return address(`/${collection}/${encodeURIComponent(id)}/archive`);
}
