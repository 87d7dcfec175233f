import { Stack, Text } from "@mantine/core";
import type { ReactNode } from "react";

interface EmptyStateProps {
  title: string;
  children?: ReactNode;
  action?: ReactNode;
}

/** Says why there is nothing, and what would change that. */
export function EmptyState({ title, children, action }: EmptyStateProps) {
  return (
    <Stack align="center" gap={6} py={44} px="md">
      <Text fw={600}>{title}</Text>
      {children ? (
        <Text size="sm" c="dimmed" ta="center" maw={460} component="div">
          {children}
        </Text>
      ) : null}
      {action ? <div style={{ marginTop: 10 }}>{action}</div> : null}
    </Stack>
  );
}
