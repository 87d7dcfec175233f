import { Group, Stack, Text } from "@mantine/core";

import type { DataReport } from "@/api/types";
import { count } from "@/lib/format";

import classes from "./token-preview.module.css";

type SourceReport = DataReport["report"]["sources"][number];
type PreviewDocument = SourceReport["preview"][number];
type PreviewToken = PreviewDocument["tokens"][number];

/** Stands in for a hidden token. */
const BLOCK = "█";

function Token({ token }: { token: PreviewToken }) {
  if (token.hidden) {
    return (
      <span className={`${classes.token} ${classes.hidden}`} title="Hidden: it can be part of a secret">
        {BLOCK}
      </span>
    );
  }
  return token.learned ? (
    <mark className={`${classes.token} ${classes.learned}`}>{token.text}</mark>
  ) : (
    <span className={classes.token}>{token.text}</span>
  );
}

function Document({ document }: { document: PreviewDocument }) {
  const row = document.row > 0 ? `${document.object}, row ${document.row}` : document.object;
  const place = document.answer ? `${row}, ${document.answer} answer` : row;
  return (
    <div>
      <Text size="xs" c="dimmed">
        {place}
        {document.omitted > 0 ? `, ${count(document.omitted)} more tokens` : ""}
      </Text>
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- keyboard users scroll it too */}
      <p className={classes.document} aria-label={`Tokens of ${place}`} tabIndex={0}>
        {document.tokens.map((token, number) => (
          <Token key={number} token={token} />
        ))}
      </p>
    </div>
  );
}

/** Documents as the model sees them, token by token, with what it learns in colour. */
export function TokenPreview({ documents }: { documents: PreviewDocument[] }) {
  return (
    <Stack gap="sm">
      <Group gap="md">
        <Text size="xs">
          <mark className={classes.learned}>learned</mark>: counts in the loss
        </Text>
        <Text size="xs">
          <span className={classes.token}>read</span> but not learned
        </Text>
        <Text size="xs">
          <span className={classes.hidden}>{BLOCK}</span> hidden, as it can be part of a secret
        </Text>
      </Group>
      {documents.map((document, number) => (
        <Document key={number} document={document} />
      ))}
    </Stack>
  );
}
