import { Button, Group, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { sessionQuery } from "@/api/session";
import type { PoolPrice } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { pricesQuery } from "@/features/budgets/api/budgets";
import { PriceDialog } from "@/features/budgets/components/price-dialog";
import { SeriesDialog } from "@/features/budgets/components/series-dialog";
import { figure, weekdaysText } from "@/features/budgets/lib/amounts";
import { priceText } from "@/lib/format";

const COLUMNS: Column<PoolPrice>[] = [
  { name: "Pool", cell: (row) => `${row.cluster.name}/${row.pool}` },
  { name: "Accelerator", quiet: true, cell: (row) => <span className="mono">{row.accelerator}</span> },
  {
    name: "Current price per slot-hour",
    end: true,
    cell: (row) => priceText(row.price_now, row.currency),
  },
  {
    name: "Rules",
    cell: (row) => (
      <>
        {row.rules.map((rule, index) => (
          <Text size="xs" key={index} className="numeric">
            {weekdaysText(rule.weekdays)} {rule.from_hour}–{rule.to_hour} h {rule.zone}:{" "}
            {priceText(rule.price_per_slot_hour)}
          </Text>
        ))}
        <Text size="xs" c="dimmed" className="numeric">
          else {priceText(row.price_per_slot_hour, row.currency)}
          {row.price_series_id ? "; its series comes first" : ""}
        </Text>
      </>
    ),
  },
  {
    name: "Kind",
    cell: (row) => <Pill tone={row.spot ? "waiting" : "muted"}>{row.spot ? "spot" : "on demand"}</Pill>,
  },
  {
    name: "Carbon now",
    end: true,
    quiet: true,
    cell: (row) => (row.grams_per_kwh_now === null ? "not known" : `${figure(row.grams_per_kwh_now)} g/kWh`),
  },
];

/** What slots cost, by whom it is said and when. */
export function PricesPage() {
  const [edited, setEdited] = useState<PoolPrice | null>(null);
  const [watched, setWatched] = useState("");
  const prices = useQuery(pricesQuery());
  const session = useQuery(sessionQuery());
  const administers = session.data?.user?.platform_role === "platform_admin";
  const over = prices.data?.items.find((row) => row.pool_id === watched);
  const columns: Column<PoolPrice>[] = [
    ...COLUMNS,
    ...(administers
      ? [
          {
            name: "(Actions)",
            end: true,
            cell: (row: PoolPrice) => (
              <Group gap={4} justify="flex-end" wrap="nowrap">
                <Button
                  size="compact-sm"
                  variant="subtle"
                  aria-label={`Change prices of ${row.cluster.name}/${row.pool}`}
                  onClick={() => setEdited(row)}
                >
                  Change
                </Button>
                <Button
                  size="compact-sm"
                  variant="subtle"
                  aria-label={`Time series of ${row.cluster.name}/${row.pool}`}
                  onClick={() => setWatched(row.pool_id)}
                >
                  Time series
                </Button>
              </Group>
            ),
          },
        ]
      : []),
  ];
  return (
    <Page title="Prices" lead="The price of each pool per slot-hour, and the carbon intensity of its electricity.">
      {prices.error ? <ProblemNotice error={prices.error} onRetry={() => void prices.refetch()} /> : null}
      {prices.data ? (
        <Panel flush>
          {prices.data.items.length > 0 ? (
            <DataTable label="Prices" rows={prices.data.items} columns={columns} rowKey={(row) => row.pool_id} />
          ) : (
            <EmptyState title="No pools yet">Prices are set for the pools of registered clusters.</EmptyState>
          )}
        </Panel>
      ) : null}
      {edited ? <PriceDialog price={edited} onClose={() => setEdited(null)} /> : null}
      {over ? <SeriesDialog price={over} onClose={() => setWatched("")} /> : null}
    </Page>
  );
}
