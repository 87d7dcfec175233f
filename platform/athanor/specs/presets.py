"""Complete specs to start from, from two CPU processes to a cluster. Each is as a person would write it."""

from dataclasses import dataclass
from typing import Any

import yaml

from athanor.specs.v1 import JobSpec
from athanor.specs.validation import parse_spec


@dataclass(frozen=True)
class Preset:
    """A named spec to start from."""

    name: str
    title: str
    description: str
    spec: dict[str, Any]

    @property
    def yaml(self) -> str:
        """Return the spec as YAML."""
        return yaml.safe_dump(self.spec, sort_keys=False, allow_unicode=True)

    def parsed(self) -> JobSpec:
        """Return the validated spec."""
        return parse_spec(self.spec)


def _cpu(name: str, model: str, *, steps: int, tokens: int, sequence: int, vocab: int) -> dict[str, Any]:
    return {
        "version": 1,
        "name": name,
        "resources": {"processes_per_node": 2, "accelerator": "cpu"},
        "time_limit_seconds": "6h",
        "checkpoint": {"every_steps": max(steps // 4, 1), "keep_last": 2},
        "training": {
            "model": {"preset": model},
            "data": {"source": "builtin:python-stdlib"},
            "tokenizer": {"vocab_size": vocab},
            "steps": steps,
            "tokens_per_step": tokens,
            "sequence_length": sequence,
            "optimizer": {"learning_rate": 3e-3},
            "schedule": {"warmup_steps": min(20, steps // 5), "decay_fraction": 0.3},
            "evaluation": {"every_steps": max(steps // 4, 1), "sequences": 64},
        },
    }


def _gpu(name: str, model: str, *, nodes: int, tokens: int, rate: float, days: int) -> dict[str, Any]:
    return {
        "version": 1,
        "name": name,
        "resources": {"nodes": nodes, "processes_per_node": 8, "accelerator": "h100"},
        "time_limit_seconds": f"{days}d",
        "checkpoint": {"every_steps": 500, "keep_last": 3},
        "training": {
            "model": {"preset": model},
            "data": {"source": "dataset:my-corpus"},
            "tokenizer": {"vocab_size": 128_256},
            "steps": 100_000,
            "tokens_per_step": tokens,
            "sequence_length": 8192,
            "optimizer": {"learning_rate": rate},
            "schedule": {"warmup_steps": 2000, "decay_fraction": 0.1},
            "precision": "bf16",
            "activation_checkpointing": "selective",
            "parallelism": {"auto": True},
            "evaluation": {"every_steps": 1000, "sequences": 256},
            "compile": True,
        },
    }


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "demo",
            "Demo, about a minute",
            "1M parameters on two CPU processes, Python's own standard library as text: a real run in a minute.",
            _cpu("demo", "llama-1m", steps=120, tokens=4096, sequence=256, vocab=2048),
        ),
        Preset(
            "llama-1m",
            "Llama 1M on a laptop",
            "The same model trained for longer, to a loss worth looking at.",
            _cpu("llama-1m", "llama-1m", steps=1000, tokens=16_384, sequence=256, vocab=2048),
        ),
        Preset(
            "llama-10m",
            "Llama 10M on a workstation",
            "10M parameters on two CPU processes; an evening.",
            _cpu("llama-10m", "llama-10m", steps=4000, tokens=32_768, sequence=512, vocab=8192),
        ),
        Preset(
            "llama-1b",
            "Llama 1B on one node",
            "1.2B parameters on 8 H100.",
            _gpu("llama-1b", "llama-1b", nodes=1, tokens=2**21, rate=3e-4, days=14),
        ),
        Preset(
            "llama-8b",
            "Llama 8B on eight nodes",
            "8B parameters on 64 H100.",
            _gpu("llama-8b", "llama-8b", nodes=8, tokens=2**22, rate=3e-4, days=14),
        ),
        Preset(
            "llama-70b",
            "Llama 70B on 64 nodes",
            "70B parameters on 512 H100.",
            _gpu("llama-70b", "llama-70b", nodes=64, tokens=2**23, rate=1.5e-4, days=30),
        ),
        Preset(
            "llama-405b",
            "Llama 405B on 512 nodes",
            "405B parameters on 4,096 H100.",
            _gpu("llama-405b", "llama-405b", nodes=512, tokens=2**24, rate=8e-5, days=60),
        ),
    )
}
