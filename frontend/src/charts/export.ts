import type { Series } from "@/api/types";
import { align } from "@/lib/series";

interface Drawn {
  label: string;
  series: Pick<Series, "steps" | "values">;
}

function cell(text: string): string {
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The points of a chart as CSV: a column for the axis and one for each line; empty where a line has no value. */
export function csvOf(axis: string, lines: Drawn[]): string {
  const [places, ...columns] = align(lines.map((line) => line.series));
  const rows = places.map((at, row) => [at, ...columns.map((column) => column[row] ?? "")].join(","));
  return [[axis, ...lines.map((line) => line.label)].map(cell).join(","), ...rows, ""].join("\n");
}

const HEAD = 34;
const MARGIN = 12;
const SWATCH = 10;

/** A copy of a chart's canvas under its title and legend, on the page's ground, at the screen's density. */
export function pictureOf(canvas: HTMLCanvasElement, title: string, legend: { text: string; color: string }[]) {
  const property = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const density = canvas.width / canvas.clientWidth;
  const picture = document.createElement("canvas");
  picture.width = canvas.width + 2 * MARGIN * density;
  picture.height = canvas.height + (HEAD + MARGIN) * density;
  const pen = picture.getContext("2d");
  if (pen === null) return picture;
  pen.scale(density, density);
  pen.fillStyle = property("--surface");
  pen.fillRect(0, 0, picture.width, picture.height);
  pen.textBaseline = "middle";
  pen.fillStyle = property("--ink");
  pen.font = '600 14px "Geist Variable", system-ui, sans-serif';
  pen.fillText(title, MARGIN, HEAD / 2);
  let at = MARGIN + pen.measureText(title).width + 2 * MARGIN;
  pen.font = '12px "Geist Variable", system-ui, sans-serif';
  for (const line of legend) {
    pen.fillStyle = property(line.color);
    pen.fillRect(at, HEAD / 2 - 1.5, SWATCH, 3);
    pen.fillStyle = property("--ink-soft");
    pen.fillText(line.text, at + SWATCH + 6, HEAD / 2);
    at += SWATCH + 6 + pen.measureText(line.text).width + MARGIN;
  }
  pen.drawImage(canvas, MARGIN, HEAD, canvas.clientWidth, canvas.clientHeight);
  return picture;
}
