import { Button, Group, Stack, Text } from "@mantine/core";
import { useState } from "react";

import { Problem } from "@/api/problem";
import type { Job, Preset } from "@/api/types";
import { CodeEditor } from "@/components/code-editor";
import { Confirm } from "@/components/confirm";
import { CopyButton } from "@/components/copy-button";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { FieldsPanel } from "@/features/submit/components/fields-panel";
import { PlanPanel } from "@/features/submit/components/plan-panel";
import { PresetPicker } from "@/features/submit/components/preset-picker";
import { useSpec } from "@/features/submit/hooks/use-spec";
import { useSubmit } from "@/features/submit/hooks/use-submit";
import { remarksFor } from "@/lib/spec-yaml";

import classes from "./submit-form.module.css";

interface SubmitFormProps {
  presets: Preset[];
  start: string;
  /** The job whose spec this starts from. */
  parent: Job | undefined;
}

export function SubmitForm({ presets, start, parent }: SubmitFormProps) {
  const spec = useSpec(start);
  const submit = useSubmit(parent);
  const [chosen, setChosen] = useState(() => presets.find((one) => one.spec_yaml === start)?.name ?? null);
  const [offered, setOffered] = useState<Preset | null>(null);

  const untouched = presets.some((one) => one.spec_yaml === spec.text);
  const take = (preset: Preset) => {
    setChosen(preset.name);
    setOffered(null);
    spec.setText(preset.spec_yaml);
    submit.reset();
  };
  // The plan and the submission judge by the same rules; whichever spoke last about this text is shown in place.
  const refusal = submit.error instanceof Problem && submit.error.fields.length > 0 ? submit.error : null;
  const sentText = submit.variables ? JSON.stringify(submit.variables) === JSON.stringify(spec.spec) : false;
  const problems = spec.problems.length > 0 || !sentText ? spec.problems : (refusal?.fields ?? []);
  const remarks =
    problems === spec.problems ? spec.remarks : [...spec.remarks, ...remarksFor(spec.text, problems, "error")];
  const blocked = spec.spec === null || problems.length > 0;

  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        if (spec.spec !== null && !blocked) submit.mutate(spec.spec);
      }}
    >
      <Stack gap="lg">
        {parent ? null : (
          <PresetPicker
            presets={presets}
            chosen={chosen}
            onChoose={(preset) => (untouched ? take(preset) : setOffered(preset))}
          />
        )}
        <div className={classes.columns}>
          <Stack gap="lg">
            <FieldsPanel spec={spec} problems={problems} />
            <PlanPanel spec={spec} problems={problems} />
          </Stack>
          <Panel title="Spec" flush tools={<CopyButton value={spec.text} label="Copy the spec" />}>
            <CodeEditor
              value={spec.text}
              label="Job spec as YAML"
              onChange={spec.setText}
              remarks={remarks}
              minHeight={420}
              maxHeight={760}
            />
          </Panel>
        </div>
        {submit.error && refusal === null ? <ProblemNotice error={submit.error} /> : null}
        <Group className={classes.submit ?? ""} justify="flex-end">
          <Text size="sm" c={blocked ? "var(--tone-bad)" : "dimmed"} role="status">
            {spec.spec === null
              ? "The YAML cannot be read yet."
              : problems.length > 0
                ? `${problems.length} ${problems.length === 1 ? "field needs" : "fields need"} attention.`
                : "Safe to retry: the same submission creates one job."}
          </Text>
          <Button type="submit" size="md" loading={submit.isPending} disabled={blocked}>
            Submit job
          </Button>
        </Group>
      </Stack>
      <Confirm
        opened={offered !== null}
        title="Replace your changes?"
        yes="Replace them"
        no="Keep my changes"
        onYes={() => {
          if (offered) take(offered);
        }}
        onNo={() => setOffered(null)}
      >
        <Text size="sm">The spec has been edited. The preset {offered?.title} would replace all of it.</Text>
      </Confirm>
    </form>
  );
}
