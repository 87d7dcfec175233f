import { Radio } from "@mantine/core";

import type { Preset } from "@/api/types";
import { count } from "@/lib/format";

import classes from "./preset-picker.module.css";

interface PresetPickerProps {
  presets: Preset[];
  chosen: string | null;
  onChoose: (preset: Preset) => void;
}

function place(preset: Preset): { text: string; fits: boolean } {
  const clusters = Object.entries(preset.fits)
    .filter(([, fits]) => fits)
    .map(([name]) => name);
  return clusters.length > 0
    ? { text: `fits ${clusters.join(", ")}`, fits: true }
    : { text: "fits no cluster here", fits: false };
}

/** Choose a preset: those that fit a cluster come first. */
export function PresetPicker({ presets, chosen, onChoose }: PresetPickerProps) {
  const ordered = [...presets].sort((a, b) => Number(place(b).fits) - Number(place(a).fits));
  return (
    <Radio.Group
      aria-label="Preset"
      value={chosen}
      onChange={(name) => {
        const preset = presets.find((one) => one.name === name);
        if (preset) onChoose(preset);
      }}
    >
      <div className={classes.grid}>
        {ordered.map((preset) => {
          const where = place(preset);
          return (
            <Radio.Card key={preset.name} value={preset.name} className={classes.card ?? ""} type="button">
              <span className={classes.head}>
                <span className={classes.title}>{preset.title}</span>
                <span className={classes.size}>{count(preset.num_parameters)}</span>
              </span>
              <span className={classes.text}>{preset.description}</span>
              <span className={classes.where} data-fits={where.fits}>
                {where.text}
              </span>
            </Radio.Card>
          );
        })}
      </div>
    </Radio.Group>
  );
}
