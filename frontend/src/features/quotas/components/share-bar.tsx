import { Group, Stack, Text } from "@mantine/core";

import type { QuotaShare } from "@/api/types";

import classes from "./share-bar.module.css";

/** "6 of 8 h100, 2 borrowed, 1 lent": all that the bar shows, in words. */
export function shareText(share: QuotaShare): string {
  const parts = [share.governed ? `${share.used} of ${share.nominal}` : `${share.used} used, no quota`];
  if (share.borrowed > 0) parts.push(`${share.borrowed} borrowed`);
  if (share.lent > 0) parts.push(`${share.lent} lent`);
  return parts.join(", ");
}

function Bar({ share }: { share: QuotaShare }) {
  const total = Math.max(1, share.nominal + share.borrowed);
  const width = (slots: number) => ({ width: `${(100 * slots) / total}%` });
  const own = Math.min(share.nominal, share.used - share.borrowed);
  const idle = Math.max(0, share.nominal - own - share.lent);
  return (
    <div className={classes.bar} aria-hidden="true">
      <span className={classes.used} style={width(own)} />
      <span className={classes.lent} style={width(share.lent)} />
      <span style={width(idle)} />
      {share.borrowed > 0 ? <span className={classes.borrowed} style={width(share.borrowed)} /> : null}
    </div>
  );
}

/** What a node uses of each accelerator now. */
export function ShareBars({ shares }: { shares: QuotaShare[] }) {
  const shown = shares.filter((share) => share.governed || share.used > 0);
  if (shown.length === 0) return <Text size="sm">–</Text>;
  return (
    <Stack gap={8}>
      {shown.map((share) => (
        <div key={share.accelerator} className={classes.share}>
          <Text size="sm" className="numeric">
            <b>{share.accelerator}</b> {shareText(share)}
          </Text>
          {share.governed ? <Bar share={share} /> : null}
          {share.available !== null ? (
            <Text size="xs" c="dimmed">
              could use {share.available} more now
            </Text>
          ) : null}
        </div>
      ))}
    </Stack>
  );
}

export function ShareKey() {
  return (
    <Group gap="md" px={16} py={10}>
      {(["used", "lent", "borrowed"] as const).map((name) => (
        <Text key={name} size="xs" c="dimmed">
          <span className={`${classes.key} ${classes[name]}`} aria-hidden="true" />
          {{ used: "own slots, used", lent: "own slots, lent to others", borrowed: "borrowed from others" }[name]}
        </Text>
      ))}
    </Group>
  );
}
