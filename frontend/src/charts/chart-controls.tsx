import { Group, SegmentedControl, Switch } from "@mantine/core";
import { useState } from "react";

import type { Axis } from "@/charts/plot-options";

const SMOOTHING = 0.9;

/** How the reader wants a page's charts drawn. */
export function useChartLook() {
  const [axis, setAxis] = useState<Axis>("step");
  const [smoothed, setSmoothed] = useState(false);
  const [logarithmic, setLogarithmic] = useState(false);
  return { axis, setAxis, smoothed, setSmoothed, smoothing: smoothed ? SMOOTHING : 0, logarithmic, setLogarithmic };
}

interface ChartControlsProps {
  look: ReturnType<typeof useChartLook>;
  /** What the horizontal axis is called when it shows time. */
  timeName: string;
}

export function ChartControls({ look, timeName }: ChartControlsProps) {
  return (
    <Group justify="space-between" gap="sm">
      <SegmentedControl
        size="xs"
        aria-label="Horizontal axis"
        value={look.axis}
        onChange={(value) => look.setAxis(value === "time" ? "time" : "step")}
        data={[
          { value: "step", label: "Steps" },
          { value: "time", label: timeName },
        ]}
      />
      <Group gap="md">
        <Switch
          size="xs"
          label="Smooth"
          checked={look.smoothed}
          onChange={(event) => look.setSmoothed(event.currentTarget.checked)}
        />
        <Switch
          size="xs"
          label="Log loss"
          checked={look.logarithmic}
          onChange={(event) => look.setLogarithmic(event.currentTarget.checked)}
        />
      </Group>
    </Group>
  );
}
