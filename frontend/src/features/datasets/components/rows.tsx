import { Text } from "@mantine/core";

import classes from "./rows.module.css";

interface Message {
  role: string;
  content: string;
}

function isMessages(value: unknown): value is Message[] {
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.every(
      (one: unknown) =>
        typeof one === "object" &&
        one !== null &&
        typeof (one as Message).role === "string" &&
        typeof (one as Message).content === "string",
    )
  );
}

function Row({ row, messagesField }: { row: unknown; messagesField: string }) {
  if (typeof row === "string") return <>{row}</>;
  const messages = (row as Record<string, unknown>)[messagesField];
  if (isMessages(messages)) {
    return (
      <>
        {messages.map((message, number) => (
          <div key={number}>
            <span className={classes.role}>{message.role}</span> {message.content}
          </div>
        ))}
      </>
    );
  }
  return <>{JSON.stringify(row, null, 1)}</>;
}

interface RowsProps {
  rows: unknown[];
  /** Field with the messages of a conversation; empty where rows are no conversations. */
  messagesField: string;
}

/** The first rows of a data set, as they are: lines of text, conversations, or objects. */
export function Rows({ rows, messagesField }: RowsProps) {
  if (rows.length === 0) {
    return (
      <Text size="sm" c="dimmed">
        No rows to show.
      </Text>
    );
  }
  return (
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- keyboard users scroll it too
    <ol className={classes.rows} aria-label="First rows" tabIndex={0}>
      {rows.map((row, number) => (
        <li key={number}>
          <Row row={row} messagesField={messagesField} />
        </li>
      ))}
    </ol>
  );
}
