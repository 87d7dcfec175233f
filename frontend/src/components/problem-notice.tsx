import { Alert, Button, Group, Text } from "@mantine/core";

import { Problem } from "@/api/problem";
import { WarningIcon } from "@/components/icons";

/** What went wrong, what to do about it, and what to quote to whoever runs the server. */
export function ProblemNotice({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const problem = error instanceof Problem ? error : null;
  const message = error instanceof Error ? error.message : "An unknown error.";
  return (
    <Alert color="red" variant="light" icon={<WarningIcon />} title={message} role="alert">
      {problem?.remedy ? <Text size="sm">{problem.remedy}</Text> : null}
      {problem?.fields.map((field) => (
        <Text size="sm" key={`${field.pointer} ${field.detail}`}>
          <code>{field.pointer || "/"}</code> {field.detail}
        </Text>
      ))}
      <Group gap="md" mt={6}>
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
    </Alert>
  );
}
