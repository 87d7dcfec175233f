import { parse } from "yaml";

import type { JsonObject, Preset } from "@/api/types";

function yamlOf(name: string, model: string, processes: number, steps: number): string {
  return `version: 1
name: ${name}
project: default
resources:
  nodes: 1
  processes_per_node: ${processes}
time_limit_seconds: 3600
checkpoint:
  every_steps: 50
  keep_last: 2
training:
  model: {preset: ${model}}
  data: {source: "builtin:python-stdlib"}
  tokenizer: {vocab_size: 2048}
  steps: ${steps}
  tokens_per_step: 8192
  sequence_length: 256
  optimizer:
    learning_rate: 0.003
  precision: fp32
  seed: 1
`;
}

const rows: [string, string, string, string, number, number, number, boolean][] = [
  ["cpu-1m", "1M on a laptop", "Two CPU processes, done in a minute: the whole path, small.", "llama-1m", 1_050_000, 2, 200, true],
  ["cpu-10m", "10M on CPU", "A model that learns syntax, over a coffee.", "llama-10m", 9_400_000, 2, 600, true],
  ["llama-1b", "Llama 1B", "One node of eight accelerators.", "llama-1b", 1_240_000_000, 8, 20_000, false],
  ["llama-8b", "Llama 8B", "Eight nodes, bf16, sharded over all.", "llama-8b", 8_030_000_000, 8, 60_000, false],
  ["llama-70b", "Llama 70B", "Thirty-two nodes; read the guide first.", "llama-70b", 70_600_000_000, 8, 100_000, false],
];

export const PRESETS: Preset[] = rows.map(([name, title, description, model, size, processes, steps, fits]) => {
  const text = yamlOf(name === "cpu-1m" ? "stdlib-1m" : name, model, processes, steps);
  return {
    name,
    title,
    description,
    spec: parse(text) as JsonObject,
    spec_yaml: text,
    fits: { local: fits },
    num_parameters: size,
  };
});
