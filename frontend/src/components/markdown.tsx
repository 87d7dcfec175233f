import type { ReactNode } from "react";

import classes from "./markdown.module.css";

const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(?:[-*+]|\d+[.)])\s+(.*)$/;
const FENCE = /^(?:```|~~~)/;
const INLINE = /(`[^`]+`)|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/;

interface MarkdownProps {
  text: string;
}

/**
 * Text that users write in Markdown: headings, paragraphs, lists, code, emphasis, and links to http and https.
 * It becomes React elements, never HTML: whatever else it contains, such as a tag or a table, is shown as it is written.
 */
export function Markdown({ text }: MarkdownProps) {
  return <div className={classes.text}>{blocks(text.split(/\r?\n/))}</div>;
}

function blocks(lines: string[]): ReactNode[] {
  const found: ReactNode[] = [];
  let at = 0;
  const take = (matches: (line: string) => boolean): string[] => {
    const first = at;
    while (at < lines.length && matches(lines[at] ?? "")) at += 1;
    return lines.slice(first, at);
  };
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const heading = HEADING.exec(line);
    const key = at;
    if (line.trim() === "") {
      at += 1;
    } else if (FENCE.test(line)) {
      at += 1;
      const code = take((each) => !FENCE.test(each));
      at += 1;
      found.push(
        <pre key={key}>
          <code>{code.join("\n")}</code>
        </pre>,
      );
    } else if (heading) {
      at += 1;
      found.push(<Heading key={key} level={heading[1]?.length ?? 1}>{inline(heading[2] ?? "")}</Heading>);
    } else if (ITEM.test(line)) {
      const List = /^\d/.test(line) ? "ol" : "ul";
      const items = take((each) => ITEM.test(each));
      found.push(
        <List key={key}>
          {items.map((item, number) => (
            <li key={number}>{inline(ITEM.exec(item)?.[1] ?? item)}</li>
          ))}
        </List>,
      );
    } else {
      const paragraph = take((each) => each.trim() !== "" && !FENCE.test(each) && !HEADING.test(each) && !ITEM.test(each));
      found.push(<p key={key}>{inline(paragraph.join("\n"))}</p>);
    }
  }
  return found;
}

/** Below the page's h1 and its panels' h2. */
function Heading({ level, children }: { level: number; children: ReactNode }) {
  if (level === 1) return <h3>{children}</h3>;
  return level === 2 ? <h4>{children}</h4> : <h5>{children}</h5>;
}

function inline(text: string): ReactNode[] {
  const found: ReactNode[] = [];
  let rest = text;
  for (let match = INLINE.exec(rest); match !== null; match = INLINE.exec(rest)) {
    const [all, code, strong, emphasis, label, address] = match;
    if (match.index > 0) found.push(rest.slice(0, match.index));
    const key = found.length;
    if (code !== undefined) found.push(<code key={key}>{code.slice(1, -1)}</code>);
    else if (strong !== undefined) found.push(<strong key={key}>{strong}</strong>);
    else if (emphasis !== undefined) found.push(<em key={key}>{emphasis}</em>);
    else {
      found.push(
        <a key={key} href={address} target="_blank" rel="noreferrer noopener">
          {label}
        </a>,
      );
    }
    rest = rest.slice(match.index + all.length);
  }
  return rest === "" ? found : [...found, rest];
}
