/** Durations and sizes as people write them, read and written exactly: `1d 12h`, `40 GiB`. */

const DURATIONS: [string, number][] = [
  ["d", 86_400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];

const BINARY: [string, number][] = [
  ["PiB", 2 ** 50],
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

const SIZES = new Map(
  [
    ...BINARY,
    ...([["PB", 1e15], ["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]] as [string, number][]),
  ].map(([unit, size]) => [unit.toLowerCase(), size]),
);

/** The seconds of `90m`, `1d 12h` or `3600`; null if the text is no duration. */
export function parseDuration(text: string): number | null {
  const trimmed = text.trim().toLowerCase();
  if (/^\d+$/.test(trimmed)) return Number(trimmed);
  if (!/^(\d+(\.\d+)?\s*[dhms]\s*)+$/.test(trimmed)) return null;
  let seconds = 0;
  for (const [, count, unit] of trimmed.matchAll(/(\d+(?:\.\d+)?)\s*([dhms])/g)) {
    seconds += Number(count) * (DURATIONS.find(([name]) => name === unit)?.[1] ?? 0);
  }
  return Math.round(seconds);
}

/** The bytes of `40 GiB`, `500 MB` or `1024`; null if the text is no size. */
export function parseSize(text: string): number | null {
  const found = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/.exec(text.trim().toLowerCase());
  const size = SIZES.get(found?.[2] || "b");
  return found && size !== undefined ? Math.round(Number(found[1]) * size) : null;
}

export function durationText(seconds: number): string {
  const parts: string[] = [];
  let rest = seconds;
  for (const [unit, size] of DURATIONS) {
    const count = Math.floor(rest / size);
    if (count > 0) parts.push(`${count}${unit}`);
    rest -= count * size;
  }
  return parts.join(" ") || "0s";
}

export function sizeText(bytes: number): string {
  for (const [unit, size] of BINARY) {
    if (bytes >= size && Number.isInteger((bytes / size) * 100)) return `${bytes / size} ${unit}`;
  }
  return `${bytes} B`;
}

export interface Unit {
  parse: (text: string) => number | null;
  text: (value: number) => string;
  /** What to write instead. */
  example: string;
}

export const DURATION: Unit = { parse: parseDuration, text: durationText, example: "Write it like 90m, 2h or 1d 12h." };
export const SIZE: Unit = { parse: parseSize, text: sizeText, example: "Write it like 40 GiB or 500 MB." };
