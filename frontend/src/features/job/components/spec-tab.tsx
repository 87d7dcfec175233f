import { Group, SegmentedControl, Stack, Text } from "@mantine/core";
import { useState } from "react";

import type { Job } from "@/api/types";
import { CodeEditor } from "@/components/code-editor";
import { CopyButton } from "@/components/copy-button";
import { Panel } from "@/components/panel";
import { toYaml } from "@/lib/spec-yaml";

const VIEWS = {
  written: { label: "As written", note: "What was submitted." },
  resolved: { label: "Resolved", note: "With every default filled in: what actually runs." },
  submission: { label: "Submission", note: "What was sent to the cluster to start the job." },
};
type View = keyof typeof VIEWS;

function textOf(job: Job, view: View): string {
  if (view === "written") return toYaml(job.spec);
  if (view === "resolved") return toYaml(job.resolved_spec);
  return job.submission ?? "The job has not been sent to a cluster yet.";
}

export function SpecTab({ job }: { job: Job }) {
  const [view, setView] = useState<View>("written");
  const text = textOf(job, view);
  return (
    <Stack gap="md">
      <Group justify="space-between">
        <SegmentedControl
          size="sm"
          aria-label="Spec format"
          value={view}
          onChange={(next) => setView(next as View)}
          data={Object.entries(VIEWS).map(([value, { label }]) => ({ value, label }))}
        />
        <Group gap={6}>
          <Text size="sm" c="dimmed">
            {VIEWS[view].note}
          </Text>
          <CopyButton value={text} label="Copy the spec" />
        </Group>
      </Group>
      <Panel flush>
        <CodeEditor
          key={view}
          value={text}
          label={VIEWS[view].label}
          language={view === "submission" ? "text" : "yaml"}
          maxHeight={900}
        />
      </Panel>
    </Stack>
  );
}
