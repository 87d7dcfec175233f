import { Button, FileInput, Group, Modal, Stack, Text, TextInput, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { errorAt } from "@/api/problem";
import type { PoolPrice, PriceSeries } from "@/api/types";
import { Moment } from "@/components/moment";
import { Notice } from "@/components/notice";
import { ProblemNotice } from "@/components/problem-notice";
import { UnitInput } from "@/components/unit-input";
import type { SeriesOf } from "@/features/budgets/api/budgets";
import { budgetKeys, connectSeries, seriesQuery, uploadSeries } from "@/features/budgets/api/budgets";
import { fieldsOf } from "@/lib/form";
import { sentence } from "@/lib/text";
import { DURATION } from "@/lib/units";

interface SeriesFieldsProps {
  title: string;
  of: SeriesOf;
  series: PriceSeries | undefined;
}

const stored = (count: number) => `${count} ${count === 1 ? "point is" : "points are"} stored.`;

function State({ series }: { series: PriceSeries | undefined }) {
  if (!series) return <Text size="sm" c="dimmed">No values yet.</Text>;
  if (series.problem) return <Notice tone="bad" title={sentence(series.problem)} urgent />;
  if (series.url && series.fetched_at) return <Notice tone="good">Fetched at <Moment time={series.fetched_at} />.</Notice>;
  return <Text size="sm" c="dimmed">{series.url ? "Not fetched yet." : "It has uploaded values."}</Text>;
}

/** Values from a file, or from a provider that is asked again and again. */
function SeriesFields({ title, of, series }: SeriesFieldsProps) {
  const client = useQueryClient();
  const [interval, setInterval] = useState(series?.fetch_seconds ?? 3600);
  const [lifetime, setLifetime] = useState(series?.stale_seconds ?? 7200);
  const [readable, setReadable] = useState({ interval: true, lifetime: true });
  const refresh = () => client.invalidateQueries({ queryKey: budgetKeys.prices });
  const upload = useMutation({ mutationFn: (file: File) => uploadSeries(of, file), onSettled: refresh });
  const connect = useMutation({ mutationFn: connectSeries, onSettled: refresh });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    connect.mutate({
      ...of,
      url: field("url").trim(),
      fetch_seconds: interval,
      stale_seconds: lifetime,
      mapping: { items: field("items"), time: field("time") || "time", value: field("value") || "value" },
    });
  };
  return (
    <form onSubmit={submit} aria-label={title}>
      <Stack gap="xs">
        <Title order={3} size="h5">{title}</Title>
        <State series={series} />
        <FileInput
          label="Upload values"
          description="CSV, one line per value: 2026-01-31T12:00:00Z,0.42"
          placeholder="Choose a file"
          accept=".csv,text/csv"
          onChange={(chosen) => {
            if (chosen) upload.mutate(chosen);
          }}
        />
        <TextInput
          label="Provider URL"
          description="It answers with JSON; empty: nobody is asked"
          name="url"
          type="url"
          defaultValue={series?.url}
        />
        <Group grow align="flex-end">
          <UnitInput
            label="Fetch interval"
            description="1m to 1d"
            unit={DURATION}
            required
            value={interval}
            onChange={(seconds) => setInterval(seconds ?? 0)}
            onValid={(valid) => setReadable({ ...readable, interval: valid })}
            error={errorAt(connect.error, "/fetch_seconds")}
          />
          <UnitInput
            label="Lifetime of a value"
            description="1m to 31d"
            unit={DURATION}
            required
            value={lifetime}
            onChange={(seconds) => setLifetime(seconds ?? 0)}
            onValid={(valid) => setReadable({ ...readable, lifetime: valid })}
            error={errorAt(connect.error, "/stale_seconds")}
          />
        </Group>
        <Group grow align="flex-end">
          <TextInput label="Path of the list" name="items" placeholder="data.points" defaultValue={series?.mapping.items} />
          <TextInput label="Time field" name="time" placeholder="time" defaultValue={series?.mapping.time} />
          <TextInput label="Value field" name="value" placeholder="value" defaultValue={series?.mapping.value} />
        </Group>
        {upload.data ? <Notice tone="good">{stored(upload.data.points)}</Notice> : null}
        {upload.error ? <ProblemNotice error={upload.error} /> : null}
        {connect.error ? <ProblemNotice error={connect.error} /> : null}
        <Group justify="flex-end">
          <Button type="submit" variant="default" loading={connect.isPending} disabled={!readable.interval || !readable.lifetime}>
            Save
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/** What a pool's slots cost and its grid's carbon is over time: it comes before prices and rules. */
export function SeriesDialog({ price, onClose }: { price: PoolPrice; onClose: () => void }) {
  const all = useQuery(seriesQuery());
  const found = (id: string | null) => all.data?.items.find((each) => each.id === id);
  return (
    <Modal opened onClose={onClose} title={`Time series: ${price.cluster.name}/${price.pool}`} centered size="lg">
      {all.error ? <ProblemNotice error={all.error} onRetry={() => void all.refetch()} /> : null}
      {all.data ? (
        <Stack gap="xl">
          <SeriesFields
            title={`Price per slot-hour, ${price.currency}`}
            of={{ kind: "price", pool_id: price.pool_id }}
            series={found(price.price_series_id)}
          />
          <SeriesFields
            title={`Carbon of the grid of ${price.cluster.name}, g/kWh`}
            of={{ kind: "carbon", cluster_id: price.cluster.id }}
            series={found(price.carbon_series_id)}
          />
        </Stack>
      ) : null}
    </Modal>
  );
}
