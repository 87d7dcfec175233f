import { Autocomplete, Button, Group, Modal, NativeSelect, NumberInput, Stack, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { errorAt } from "@/api/problem";
import type { AlertRule, Team } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { alertKeys, changeRule, createRule } from "@/features/alerts/api/alerts";
import { MEASURES, SERIES } from "@/features/alerts/lib/measures";
import { fieldsOf } from "@/lib/form";

interface RuleFormDialogProps {
  opened: boolean;
  /** The rule to change; without one, a rule is created. */
  rule?: AlertRule;
  teams: Team[];
  onClose: () => void;
}

type Fields = Pick<
  AlertRule,
  "name" | "series" | "threshold" | "clear_threshold" | "for_seconds" | "job_name" | "severity" | "recipients"
>;

const number = (text: string) => Number(text.replaceAll(",", ""));

/** A dialog for one rule: give it a key, so that another rule gets a new one. */
export function RuleFormDialog({ opened, rule, teams, onClose }: RuleFormDialogProps) {
  const client = useQueryClient();
  const first = rule?.measure ?? "series_below";
  const [measure, setMeasure] = useState<AlertRule["measure"]>(first);
  const facts = MEASURES.find((each) => each.value === measure);
  const save = useMutation({
    mutationFn: ({ team, ...fields }: Fields & { team: string }) =>
      rule ? changeRule(rule.id, changesOf(rule, fields)) : createRule({ ...fields, measure, team }),
    onSuccess: () => {
      close();
      return client.invalidateQueries({ queryKey: alertKeys.all });
    },
  });
  const close = () => {
    save.reset();
    setMeasure(first);
    onClose();
  };
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    save.mutate({
      name: field("name"),
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
    <Modal opened={opened} onClose={close} title={rule ? `Change ${rule.name}` : "New alert rule"} centered>
      <form onSubmit={submit}>
        <Stack>
          <TextInput name="name" label="Name" defaultValue={rule?.name ?? ""} error={errorAt(save.error, "/name")} required withAsterisk={false} maxLength={100} data-autofocus />
          <NativeSelect
            label="Condition"
            value={measure}
            disabled={rule !== undefined}
            data={MEASURES.map(({ value, label }) => ({ value, label }))}
            onChange={(event) => setMeasure(event.currentTarget.value as AlertRule["measure"])}
            error={errorAt(save.error, "/measure")}
          />
          {facts?.hasSeries ? (
            <Autocomplete name="series" label="Series" defaultValue={rule?.series ?? SERIES[0] ?? ""} data={SERIES} error={errorAt(save.error, "/series")} required withAsterisk={false} />
          ) : null}
          <Group grow align="flex-start">
            <NumberInput name="threshold" label={facts?.unit ? `Threshold (${facts.unit})` : "Threshold"} defaultValue={rule?.threshold ?? ""} error={errorAt(save.error, "/threshold")} required withAsterisk={false} />
            <NumberInput name="clear" label="Resolved at" placeholder="the threshold" defaultValue={rule?.clear_threshold ?? ""} error={errorAt(save.error, "/clear_threshold")} />
            <NumberInput name="minutes" label="For (minutes)" defaultValue={(rule?.for_seconds ?? 0) / 60} min={0} error={errorAt(save.error, "/for_seconds")} />
          </Group>
          {ofJobs ? (
            <TextInput name="job_name" label="Jobs named" description="* matches any characters; empty for all" defaultValue={rule?.job_name ?? ""} maxLength={100} error={errorAt(save.error, "/job_name")} />
          ) : null}
          <NativeSelect
            name="recipients"
            label="Notify"
            defaultValue={rule?.recipients ?? "owner"}
            data={[
              { value: "owner", label: ofJobs ? "Who submitted the job" : "The administrators" },
              { value: "team", label: "All members" },
            ]}
          />
          <Group grow align="flex-start">
            <NativeSelect name="severity" label="Severity" data={["info", "warning", "critical"]} defaultValue={rule?.severity ?? "warning"} />
            {rule ? null : (
              <NativeSelect name="team" label="Team" data={teams.map((team) => team.name)} error={errorAt(save.error, "/team")} />
            )}
          </Group>
          {save.error ? <ProblemNotice error={save.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>
              Back
            </Button>
            <Button type="submit" loading={save.isPending}>
              {rule ? "Save" : "Create"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

/** The fields that differ: those that a form cannot show exactly, such as 90 s as minutes, stay as they are. */
function changesOf(rule: AlertRule, fields: Fields): Partial<Fields> {
  return Object.fromEntries(Object.entries(fields).filter(([name, value]) => rule[name as keyof Fields] !== value));
}
