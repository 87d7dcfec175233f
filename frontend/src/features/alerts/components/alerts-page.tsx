import { Anchor, Button, Group, Switch, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { sessionQuery } from "@/api/session";
import type { Alert, AlertRule } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { PlusIcon } from "@/components/icons";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { alertKeys, alertsQuery, changeRule, deleteRule, rulesQuery } from "@/features/alerts/api/alerts";
import { InboxPanel } from "@/features/alerts/components/inbox-panel";
import { PreferencesPanel } from "@/features/alerts/components/preferences-panel";
import { RuleFormDialog } from "@/features/alerts/components/rule-form-dialog";
import { conditionText } from "@/features/alerts/lib/measures";
import { useNow } from "@/lib/use-now";

const TONES = { pending: "waiting", firing: "bad", resolved: "good" } as const;

function alertColumns(now: number): Column<Alert>[] {
  return [
    { name: "State", cell: (alert) => <Pill tone={TONES[alert.state]}>{alert.state}</Pill> },
    { name: "Rule", cell: (alert) => alert.rule },
    {
      name: "On",
      cell: (alert) =>
        alert.job_id === null ? (
          alert.subject_name
        ) : (
          <Anchor component={Link} to={`/jobs/${alert.job_id}`} size="sm">
            {alert.subject_name}
          </Anchor>
        ),
    },
    { name: "Message", cell: (alert) => alert.message },
    { name: "Since", quiet: true, cell: (alert) => <TimeAgo time={alert.since} now={now} /> },
    { name: "Resolved", quiet: true, cell: (alert) => <TimeAgo time={alert.resolved_at} now={now} /> },
  ];
}

export function AlertsPage() {
  const client = useQueryClient();
  const session = useQuery(sessionQuery());
  const rules = useQuery(rulesQuery());
  const alerts = useQuery(alertsQuery());
  const [creating, { open, close }] = useDisclosure(false);
  const [changing, setChanging] = useState<AlertRule | null>(null);
  const [doomed, setDoomed] = useState<AlertRule | null>(null);
  const now = useNow(true, 10_000);
  const refresh = () => client.invalidateQueries({ queryKey: alertKeys.all });
  const change = useMutation({
    mutationFn: (rule: AlertRule) => changeRule(rule.id, { enabled: !rule.enabled }),
    onSettled: refresh,
  });
  const remove = useMutation({
    mutationFn: (rule: AlertRule) => deleteRule(rule.id),
    onSuccess: () => setDoomed(null),
    onSettled: refresh,
  });
  const teams = (session.data?.teams ?? []).filter((team) => team.role !== "viewer");
  const mayChange = (rule: AlertRule) => teams.some((team) => team.name === rule.team);
  const columns: Column<AlertRule>[] = [
    {
      name: "Rule",
      cell: (rule) => (
        <>
          <Text size="sm" fw={550} component="span">
            {rule.name}
          </Text>
          <Text size="xs" c="dimmed">
            {conditionText(rule)}
          </Text>
        </>
      ),
    },
    { name: "Team", cell: (rule) => rule.team },
    { name: "Jobs", quiet: true, cell: (rule) => rule.job_name || "all" },
    { name: "Severity", cell: (rule) => rule.severity },
    {
      name: "Enabled",
      cell: (rule) => (
        <Switch
          checked={rule.enabled}
          disabled={!mayChange(rule)}
          onChange={() => change.mutate(rule)}
          aria-label={`Evaluate ${rule.name}`}
        />
      ),
    },
    {
      name: "(Actions)",
      end: true,
      cell: (rule) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          <Button
            size="compact-sm"
            variant="subtle"
            disabled={!mayChange(rule)}
            onClick={() => setChanging(rule)}
            aria-label={`Change ${rule.name}`}
          >
            Change
          </Button>
          <Button
            size="compact-sm"
            variant="subtle"
            color="red"
            disabled={!mayChange(rule)}
            onClick={() => setDoomed(rule)}
            aria-label={`Delete ${rule.name}`}
          >
            Delete
          </Button>
        </Group>
      ),
    },
  ];
  const create = (
    <Button leftSection={<PlusIcon size={16} />} onClick={open} disabled={teams.length === 0}>
      New alert rule
    </Button>
  );
  const problem = rules.error ?? alerts.error ?? change.error;
  return (
    <Page title="Alerts" lead="Rules on your teams' jobs, budgets and storage, and your notifications." actions={create}>
      {problem ? <ProblemNotice error={problem} onRetry={() => void refresh()} /> : null}
      <InboxPanel now={now} />
      {alerts.data ? (
        <Panel title="Alerts" flush>
          {alerts.data.items.length > 0 ? (
            <DataTable label="Alerts" rows={alerts.data.items} columns={alertColumns(now)} rowKey={(alert) => alert.id} />
          ) : (
            <EmptyState title="No alerts">Nothing has passed the threshold of a rule.</EmptyState>
          )}
        </Panel>
      ) : null}
      {rules.data ? (
        <Panel title="Rules" flush>
          {rules.data.items.length > 0 ? (
            <DataTable label="Rules" rows={rules.data.items} columns={columns} rowKey={(rule) => rule.id} />
          ) : (
            <EmptyState title="No alert rules yet">
              Add one to be notified of slow or stuck jobs, long queues, and budgets or storage that run out.
            </EmptyState>
          )}
        </Panel>
      ) : null}
      <PreferencesPanel />
      <RuleFormDialog opened={creating} teams={teams} onClose={close} />
      {changing ? (
        <RuleFormDialog key={changing.id} opened rule={changing} teams={teams} onClose={() => setChanging(null)} />
      ) : null}
      <Confirm
        opened={doomed !== null}
        title={`Delete ${doomed?.name ?? "the rule"}?`}
        yes="Delete it"
        no="Keep it"
        busy={remove.isPending}
        error={remove.error}
        onYes={() => {
          if (doomed) remove.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">Its alerts are deleted too. Notifications stay in the inboxes.</Text>
      </Confirm>
    </Page>
  );
}
