import { Loader, Stack, Text } from "@mantine/core";

import type { FieldProblem, Plan } from "@/api/types";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { StartOutlook } from "@/features/submit/components/start-outlook";
import type { SpecState } from "@/features/submit/hooks/use-spec";
import { bytes, count, duration, money } from "@/lib/format";
import { pointerPath } from "@/lib/spec-yaml";

import classes from "./plan-panel.module.css";

/** What the server says to the spec as it stands: refusals first, then warnings, then what it will take. */
export function PlanPanel({ spec, problems }: { spec: SpecState; problems: FieldProblem[] }) {
  const { plan } = spec;
  const busy = spec.planning ? <Loader size={14} aria-label="Checking the spec" /> : null;
  return (
    <Panel title="Estimate" tools={busy}>
      <Stack gap="md" aria-live="polite">
        {spec.failure ? <ProblemNotice error={spec.failure} /> : null}
        {spec.spec === null ? (
          <Text size="sm" c="var(--tone-bad)">
            {spec.remarks[0]?.message}
          </Text>
        ) : null}
        {problems.length > 0 ? <Remarks items={problems} tone="bad" /> : null}
        {plan && plan.warnings.length > 0 ? <Remarks items={plan.warnings} tone="waiting" /> : null}
        {plan && problems.length === 0 ? <StartOutlook plan={plan} /> : null}
        {plan && problems.length === 0 ? <Estimate plan={plan} /> : null}
        {!plan && spec.spec !== null && problems.length === 0 && !spec.failure ? (
          <Text size="sm" c="dimmed">
            Checking…
          </Text>
        ) : null}
      </Stack>
    </Panel>
  );
}

function Remarks({ items, tone }: { items: FieldProblem[]; tone: "bad" | "waiting" }) {
  return (
    <ul className={classes.remarks} data-tone={tone}>
      {items.map((item) => (
        <li key={`${item.pointer} ${item.code} ${item.detail}`}>
          {item.pointer === "" ? null : <code>{pointerPath(item.pointer).join(".")}</code>} {item.detail}
        </li>
      ))}
    </ul>
  );
}

function likeJobs({ like_jobs }: NonNullable<Plan["expected"]>): string {
  return `from ${like_jobs} like ${like_jobs === 1 ? "job" : "jobs"}`;
}

function Estimate({ plan: { estimate, expected } }: { plan: Plan }) {
  const pool = estimate.pool_memory_bytes_per_process;
  const share = pool ? estimate.memory_bytes_per_process / pool : null;
  return (
    <dl className={classes.figures}>
      <Figure name="Parameters" value={count(estimate.num_parameters)} />
      <Figure name="Total tokens" value={count(estimate.tokens_total)} />
      <Figure
        name="Processes"
        value={String(estimate.processes)}
        note={`of ${estimate.slots} ${estimate.slots === 1 ? "slot" : "slots"}`}
      />
      {expected ? (
        <>
          <Figure
            name="Expected duration"
            value={duration(expected.p50_seconds)}
            note={`90% within ${duration(expected.p90_seconds)}, ${likeJobs(expected)}`}
          />
          <Figure
            name="Expected cost"
            value={money(expected.p50_cost, estimate.cost_currency)}
            note={`90% within ${money(expected.p90_cost, estimate.cost_currency)}`}
          />
        </>
      ) : null}
      <Figure
        name="Cost at the time limit"
        value={money(estimate.cost_at_time_limit, estimate.cost_currency)}
      />
      <div className={classes.memory}>
        <dt>Memory per process</dt>
        <dd>
          {bytes(estimate.memory_bytes_per_process)}
          {pool ? <small>of {bytes(pool)}</small> : null}
        </dd>
        {share === null ? null : (
          <div className={classes.track} aria-hidden="true">
            <div data-full={share > 1} style={{ width: `${Math.min(1, share) * 100}%` }} />
          </div>
        )}
      </div>
    </dl>
  );
}

function Figure({ name, value, note }: { name: string; value: string; note?: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {value}
        {note ? <small>{note}</small> : null}
      </dd>
    </div>
  );
}
