// eslint-disable-next-line no-control-regex -- terminal colour codes are control characters
const TERMINAL_CODES = /\u001b\[[0-9;?]*[A-Za-z]/g;

/** A program's output without the codes that colour it in a terminal. */
export function plain(text: string): string {
  return text.replace(TERMINAL_CODES, "");
}

/** The server's messages are clauses; as a title of their own they begin with a capital, unless with a name such as bot@1. */
export function sentence(text: string): string {
  return /^[a-z]+(?![\w@./:-])/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
}

/** The text in pieces, every second of which is a match of `needle` (case ignored). */
export function splitMatches(text: string, needle: string): string[] {
  if (needle === "") return [text];
  const pieces: string[] = [];
  const low = text.toLowerCase();
  const sought = needle.toLowerCase();
  // A letter whose lower case is longer would shift the places: then nothing is marked rather than the wrong thing.
  if (low.length !== text.length) return [text];
  let from = 0;
  for (let at = low.indexOf(sought); at >= 0; at = low.indexOf(sought, from)) {
    pieces.push(text.slice(from, at), text.slice(at, at + sought.length));
    from = at + sought.length;
  }
  pieces.push(text.slice(from));
  return pieces;
}
