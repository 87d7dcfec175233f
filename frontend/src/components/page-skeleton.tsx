import { Skeleton, Stack } from "@mantine/core";

import { Page } from "@/components/page";
import { ProblemNotice } from "@/components/problem-notice";

interface PageSkeletonProps {
  title: string;
  /** Why the page could not be read, with a way to try again. */
  error: Error | null;
  onRetry: () => void;
}

/** Stands for a page until its content is loaded, and shows why it could not be loaded. */
export function PageSkeleton({ title, error, onRetry }: PageSkeletonProps) {
  return (
    <Page title={title}>
      {error ? (
        <ProblemNotice error={error} onRetry={onRetry} />
      ) : (
        <Stack aria-busy="true" aria-label="Loading">
          <Skeleton height={120} />
          <Skeleton height={320} />
        </Stack>
      )}
    </Page>
  );
}
