import { Skeleton, Stack } from "@mantine/core";

import { Page } from "@/components/page";
import { ProblemNotice } from "@/components/problem-notice";

interface PageSkeletonProps {
  title: string;
  /** Why the page could not be read, with a way to try again. */
  error: Error | null;
  onRetry: () => void;
}

/** A page whose content is being read, or could not be read. */
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
