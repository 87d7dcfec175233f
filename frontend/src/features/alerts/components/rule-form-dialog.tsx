import { Autocomplete, Button, Group, Modal, NativeSelect, NumberInput, Stack, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { errorAt } from "@/api/problem";
import type { AlertRule, Team } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { alertKeys, createRule } from "@/features/alerts/api/alerts";
import { MEASURES, SERIES } from "@/features/alerts/lib/measures";
import { fieldsOf } from "@/lib/form";

interface RuleFormDialogProps {
  opened: boolean;
  teams: Team[];
  onClose: () => void;
}

const number = (text: string) => Number(text.replaceAll(",", ""));

export function RuleFormDialog({ opened, teams, onClose }: RuleFormDialogProps) {
  const client = useQueryClient();
  const [measure, setMeasure] = useState<AlertRule["measure"]>("series_below");
  const facts = MEASURES.find((each) => each.value === measure);
  const create = useMutation({
    mutationFn: createRule,
    onSuccess: () => {
      close();
      return client.invalidateQueries({ queryKey: alertKeys.all });
    },
  });
  const close = () => {
    create.reset();
    setMeasure("series_below");
    onClose();
  };
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    create.mutate({
      name: field("name"),
      measure,
      series: facts?.hasSeries ? field("series") : "",
      threshold: number(field("threshold")),
      clear_threshold: field("clear") === "" ? null : number(field("clear")),
      for_seconds: Math.round(60 * number(field("minutes"))),
      job_name: field("job_name"),
      severity: field("severity") as AlertRule["severity"],
      recipients: field("recipients") as AlertRule["recipients"],
      team: field("team"),
    });
  };
  const ofJobs = measure !== "budget_used" && measure !== "storage_used";
  return (
    <Modal opened={opened} onClose={close} title="New alert rule" centered>
      <form onSubmit={submit}>
        <Stack>
          <TextInput name="name" label="Name" error={errorAt(create.error, "/name")} required withAsterisk={false} maxLength={100} data-autofocus />
          <NativeSelect
            label="Condition"
            value={measure}
            data={MEASURES.map(({ value, label }) => ({ value, label }))}
            onChange={(event) => setMeasure(event.currentTarget.value as AlertRule["measure"])}
            error={errorAt(create.error, "/measure")}
          />
          {facts?.hasSeries ? (
            <Autocomplete name="series" label="Series" defaultValue={SERIES[0] ?? ""} data={SERIES} error={errorAt(create.error, "/series")} required withAsterisk={false} />
          ) : null}
          <Group grow align="flex-start">
            <NumberInput name="threshold" label={facts?.unit ? `Threshold (${facts.unit})` : "Threshold"} error={errorAt(create.error, "/threshold")} required withAsterisk={false} />
            <NumberInput name="clear" label="Resolved at" placeholder="the threshold" error={errorAt(create.error, "/clear_threshold")} />
            <NumberInput name="minutes" label="For (minutes)" defaultValue={0} min={0} error={errorAt(create.error, "/for_seconds")} />
          </Group>
          {ofJobs ? (
            <TextInput name="job_name" label="Jobs named" description="* matches any characters; empty for all" maxLength={100} error={errorAt(create.error, "/job_name")} />
          ) : null}
          <NativeSelect
            name="recipients"
            label="Notify"
            data={[
              { value: "owner", label: ofJobs ? "Who submitted the job" : "The administrators" },
              { value: "team", label: "All members" },
            ]}
          />
          <Group grow align="flex-start">
            <NativeSelect name="severity" label="Severity" data={["info", "warning", "critical"]} defaultValue="warning" />
            <NativeSelect name="team" label="Team" data={teams.map((team) => team.name)} error={errorAt(create.error, "/team")} />
          </Group>
          {create.error ? <ProblemNotice error={create.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>
              Back
            </Button>
            <Button type="submit" loading={create.isPending}>
              Create
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
