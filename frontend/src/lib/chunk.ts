/** A chunk of the dashboard's code that did not load: the server was unreachable, or has another version by now. */
export class ChunkError extends Error {
  override name = "ChunkError";
}

/** `load`, an import of a chunk; a chunk that does not come is a ChunkError. */
export async function chunk<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (error) {
    throw new ChunkError("A part of the dashboard could not be loaded.", { cause: error });
  }
}

const LAST_RELOAD = "athanor.reloaded-for-chunk";
const MS_BETWEEN_RELOADS = 15_000;

/** Whether the page may reload itself. Not twice in a short time: then the chunk is missing for good. */
export function mayReload(storage: Pick<Storage, "getItem" | "setItem">, now: number): boolean {
  const last = Number(storage.getItem(LAST_RELOAD) ?? -MS_BETWEEN_RELOADS);
  if (now - last < MS_BETWEEN_RELOADS) return false;
  storage.setItem(LAST_RELOAD, String(now));
  return true;
}
