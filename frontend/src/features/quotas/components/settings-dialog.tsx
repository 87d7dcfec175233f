import { Button, Group, Modal, Stack, Switch } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { AdmissionSettings } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { UnitInput } from "@/components/unit-input";
import type { Read } from "@/features/quotas/api/quotas";
import { changeSettings, quotaKeys, settingsQuery } from "@/features/quotas/api/quotas";
import { DURATION } from "@/lib/units";

const SWITCHES = [
  { name: "fair_share", label: "Fair share", description: "Teams that recently used the smallest share of their quota go first, instead of first come, first served." },
  { name: "backfill", label: "Backfill", description: "Small jobs may pass one that waits, if they do not delay it." },
  { name: "preempt", label: "Reclaim", description: "Owners reclaim borrowed slots; the borrower saves a checkpoint first." },
] as const;
const SPANS = [
  { name: "half_life_seconds", label: "Half-life of past usage", description: "Past usage counts half after this time in fair-share ranking." },
  { name: "age_step_seconds", label: "Waiting time per priority class", description: "0: waiting never raises a job." },
  { name: "protected_seconds", label: "Minimum run time before preemption", description: "From a job's start; doubled each time." },
] as const;

/** Admission settings. */
export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const settings = useQuery(settingsQuery());
  return (
    <Modal opened onClose={onClose} title="Admission settings" centered>
      {settings.error ? <ProblemNotice error={settings.error} /> : null}
      {settings.data ? <SettingsForm first={settings.data} onClose={onClose} /> : null}
    </Modal>
  );
}

function SettingsForm({ first, onClose }: { first: Read<AdmissionSettings>; onClose: () => void }) {
  const client = useQueryClient();
  const [values, setValues] = useState(first.value);
  const [unreadable, setUnreadable] = useState<Record<string, boolean>>({});
  const save = useMutation({
    mutationFn: () => changeSettings(values, first.tag),
    onSuccess: onClose,
    onSettled: () => client.invalidateQueries({ queryKey: quotaKeys.settings }),
  });
  return (
    <Stack>
      {SWITCHES.map(({ name, label, description }) => (
        <Switch
          key={name}
          label={label}
          description={description}
          checked={values[name] ?? false}
          onChange={(event) => setValues({ ...values, [name]: event.currentTarget.checked })}
        />
      ))}
      {SPANS.map(({ name, label, description }) => (
        <UnitInput
          key={name}
          label={label}
          description={description}
          unit={DURATION}
          required
          value={values[name]}
          onValid={(valid) => setUnreadable({ ...unreadable, [name]: !valid })}
          onChange={(seconds) => setValues({ ...values, [name]: seconds ?? 0 })}
        />
      ))}
      {save.error ? <ProblemNotice error={save.error} /> : null}
      <Group justify="flex-end">
        <Button variant="default" onClick={onClose}>
          Back
        </Button>
        <Button
          loading={save.isPending}
          disabled={Object.values(unreadable).some(Boolean)}
          onClick={() => save.mutate()}
        >
          Save
        </Button>
      </Group>
    </Stack>
  );
}
