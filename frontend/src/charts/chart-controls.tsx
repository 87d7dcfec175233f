import { Group, SegmentedControl, Select, Slider, Switch, Text } from "@mantine/core";
import { useState } from "react";

import type { ChartLook, RunAxis } from "@/charts/use-chart-look";
import { MAX_SMOOTHING, RUN_AXES } from "@/charts/use-chart-look";

import classes from "./chart-controls.module.css";

interface ChartControlsProps {
  look: ChartLook;
  /** What the horizontal axis is called when it shows time. */
  timeName: string;
  /** Series without a chart yet, which the reader may add. */
  others: string[];
}

export function ChartControls({ look, timeName, others }: ChartControlsProps) {
  // The address, and with it the charts, follow when the handle is released.
  const [dragged, setDragged] = useState<number | null>(null);
  const names: Record<RunAxis, string> = { step: "Steps", tokens: "Tokens", time: timeName };
  return (
    <Group justify="space-between" gap="sm">
      <SegmentedControl
        size="xs"
        aria-label="Horizontal axis"
        value={look.axis}
        onChange={look.setAxis}
        data={RUN_AXES.map((axis) => ({ value: axis, label: names[axis] }))}
      />
      <Group gap="md">
        <Select
          size="xs"
          className={classes.add ?? ""}
          aria-label="Add a chart of another series"
          placeholder="Add a chart"
          searchable
          nothingFoundMessage="No such series"
          value={null}
          data={others}
          onChange={(series) => {
            if (series !== null) look.add(series);
          }}
        />
        <Group gap="xs">
          <Text size="xs" id="smoothing">
            Smoothing
          </Text>
          <Slider
            className={classes.slider ?? ""}
            size="sm"
            min={0}
            max={MAX_SMOOTHING}
            step={0.01}
            label={(weight) => weight.toFixed(2)}
            thumbProps={{ "aria-labelledby": "smoothing" }}
            value={dragged ?? look.smoothing}
            onChange={setDragged}
            onChangeEnd={(weight) => {
              setDragged(null);
              look.setSmoothing(weight);
            }}
          />
        </Group>
        <Switch
          size="xs"
          label="Log scale"
          checked={look.logarithmic}
          onChange={(event) => look.setLogarithmic(event.currentTarget.checked)}
        />
      </Group>
    </Group>
  );
}
