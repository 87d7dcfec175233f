import { Button, Group, Text } from "@mantine/core";

import { Problem } from "@/api/problem";
import { Notice } from "@/components/notice";
import { sentence } from "@/lib/text";

/** What went wrong, what to do about it, and the id to quote to the server's operators. */
export function ProblemNotice({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const problem = error instanceof Problem ? error : null;
  const message = error instanceof Error ? error.message : "An unknown error.";
  return (
    <Notice tone="bad" title={sentence(message)} urgent>
      {problem?.remedy ? <p>{sentence(problem.remedy)}</p> : null}
      {problem?.fields.map((field) => (
        <p key={`${field.pointer} ${field.detail}`}>
          <code>{field.pointer || "/"}</code> {field.detail}
        </p>
      ))}
      <Group gap="md" mt={2}>
        {problem ? (
          <Text size="xs" c="dimmed" className="mono">
            {problem.code}
            {problem.requestId ? ` · request ${problem.requestId}` : ""}
          </Text>
        ) : null}
        {onRetry ? (
          <Button size="compact-xs" variant="default" onClick={onRetry}>
            Try again
          </Button>
        ) : null}
      </Group>
    </Notice>
  );
}
