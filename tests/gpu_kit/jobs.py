"""Jobs of the kit: what is trained, and runs of `python -m trainer` on the GPU or on the CPU."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.trainer.runs import WORDS, FinishedRun
from trainer.contract.run import EXIT_STATUS, EndClass

Device = Literal["cuda", "cpu"]

SHAPE: dict[str, Any] = {
    "hidden_size": 256, "num_layers": 4, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 512, "head_dim": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_size": 128, "shared_experts": 1, "scoring": "sigmoid",
           "balance_rate": 0.001}  # fmt: skip
GEMMA2 = {
    "norm_position": "both", "offset_norms": True, "activation": "gelu_tanh", "scale_embeddings": True,
    "scale_window_rope": True, "sliding_window": 48, "full_attention_every": 2, "attn_logit_softcapping": 1.0,
    "final_logit_softcapping": 3.0,
}  # fmt: skip
GPT_OSS = {
    "attention_bias": True, "attention_output_bias": True, "attention_sinks": True, "scale_window_rope": True,
    "sliding_window": 48, "full_attention_every": 2, "intermediate_size": 128,
    "moe": {"num_experts": 8, "experts_per_token": 2, "expert_size": 128, "biases": True, "swiglu_limit": 7.0},
}  # fmt: skip
DEEPSEEK = {
    "num_kv_heads": 8, "head_dim": None,
    "mla": {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
    "moe": {**EXPERTS, "num_groups": 4, "groups_per_token": 2, "first_dense_layers": 1, "weight_scale": 2.5},
}  # fmt: skip
LLAMA4 = {
    "interleaved_rope": True, "l2_qk_norm": True, "attention_chunk_size": 48, "full_attention_every": 4,
    "no_rope_every": 4, "temperature_tuning": {"floor_scale": 64, "attn_scale": 0.5},
    "moe": {
        "num_experts": 8, "experts_per_token": 1, "expert_size": 128, "shared_experts": 1, "scoring": "sigmoid",
        "normalise_weights": False, "weigh_inputs": True,
    },
}  # fmt: skip
GLM = {"attention_bias": True, "rotary_fraction": 0.5, "qk_norm": True, "moe": EXPERTS}
BASE: dict[str, Any] = {
    "data": {"source": "dataset:kit"},
    "tokenizer": {"vocab_size": 512, "sample_characters": 100_000},
    "steps": 8,
    "tokens_per_step": 4096,
    "sequence_length": 256,
    "precision": "fp32",
    "compile": False,
    "schedule": {"warmup_steps": 2},
    "evaluation": {"every_steps": 8, "sequences": 8},
    "parallelism": {"micro_batch_sequences": 8},
    "seed": 5,
}
DOCUMENTS = {"data": {"source": "dataset:kit", "packing": "documents"}}


@dataclass(frozen=True)
class Reference:
    """A run on the CPU. `base`: the reference that exported its base model; None for fresh weights."""

    changes: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    base: str | None = None


REFERENCES = {
    "dense fp32": Reference(),
    "dense bf16": Reference({"precision": "bf16"}),
    "dense fp8": Reference({"precision": "fp8"}),
    "documents fp32": Reference(DOCUMENTS),
    "documents bf16": Reference({**DOCUMENTS, "precision": "bf16"}),
    "window fp32": Reference(shape={"sliding_window": 48}),
    "window bf16": Reference({"precision": "bf16"}, {"sliding_window": 48}),
    "windowed documents bf16": Reference({**DOCUMENTS, "precision": "bf16"}, {"sliding_window": 48}),
    "mixture fp32": Reference(shape={"moe": EXPERTS}),
    "mixture bf16": Reference({"precision": "bf16"}, {"moe": EXPERTS}),
    "muon fp32": Reference({"optimizer": {"name": "muon"}}),
    "qwen2 bf16": Reference({"precision": "bf16"}, {"attention_bias": True, "tie_embeddings": True}),
    "qwen3 bf16": Reference({"precision": "bf16"}, {"qk_norm": True}),
    "gemma2 fp32": Reference(shape=GEMMA2),
    "gemma2 documents bf16": Reference({**DOCUMENTS, "precision": "bf16"}, GEMMA2),
    "gpt-oss fp32": Reference(shape=GPT_OSS),
    "gpt-oss documents bf16": Reference({**DOCUMENTS, "precision": "bf16"}, GPT_OSS),
    "deepseek fp32": Reference(shape=DEEPSEEK),
    "deepseek documents bf16": Reference({**DOCUMENTS, "precision": "bf16"}, DEEPSEEK),
    "llama4 fp32": Reference(shape=LLAMA4),
    "llama4 documents bf16": Reference({**DOCUMENTS, "precision": "bf16"}, LLAMA4),
    "glm documents bf16": Reference({**DOCUMENTS, "precision": "bf16"}, GLM),
    "watched fp32": Reference(
        {"steps": 10, "optimizer": {"gradient_watch": {"layers_every_steps": 10, "logits_every_steps": 10}}}
    ),
    "lora bf16": Reference({"precision": "bf16", "lora": {"rank": 8}}, base="dense fp32"),
    "qlora bf16": Reference({"precision": "bf16", "lora": {"rank": 8, "quantization": "nf4"}}, base="dense fp32"),
}


@dataclass(frozen=True)
class Case:
    """A run on the GPU. Its losses and gradient norms are compared with those of a reference on the CPU. `tolerance`:
    of which precision; None: of its own."""

    reference: str
    changes: dict[str, Any] = field(default_factory=dict)
    tolerance: str | None = None


CASES = {
    **{name: Case(name) for name in REFERENCES},
    "muon fp32": Case("muon fp32", tolerance="bf16"),  # GPUs orthogonalise the updates in bf16
    "compiled fp32": Case("dense fp32", {"compile": True}),
    "compiled bf16": Case("dense bf16", {"compile": True}),
    "compiled fp8": Case("dense fp8", {"compile": True}),
    "compiled documents bf16": Case("documents bf16", {"compile": True}),
    "compiled mixture bf16": Case("mixture bf16", {"compile": True}),
    "compiled gemma2 documents bf16": Case("gemma2 documents bf16", {"compile": True}),
    "compiled gpt-oss documents bf16": Case("gpt-oss documents bf16", {"compile": True}),
    "compiled deepseek documents bf16": Case("deepseek documents bf16", {"compile": True}),
    "compiled llama4 documents bf16": Case("llama4 documents bf16", {"compile": True}),
    "compiled mixture fp32": Case("mixture fp32", {"compile": True}),
    "compiled recomputed mixture bf16": Case("mixture bf16", {"activation_checkpointing": "full", "compile": True}),
    "graphs bf16": Case("dense bf16", {"compile": True, "cuda_graphs": True, "parallelism": {
        "zero": 0, "micro_batch_sequences": 8}}),
    "selective recomputation bf16": Case("dense bf16", {"activation_checkpointing": "selective"}),
    "full recomputation bf16": Case("dense bf16", {"activation_checkpointing": "full"}),
    "compiled recomputation bf16": Case("dense bf16", {"activation_checkpointing": "full", "compile": True}),
    "offloaded fp32": Case("dense fp32", {"optimizer": {"offload": True}}),
    "deterministic bf16": Case("dense bf16", {"deterministic": True}),
    "small micro-batches bf16": Case("dense bf16", {"parallelism": {"micro_batch_sequences": 3}}),
    "samples bf16": Case("dense bf16", {"evaluation": {"every_steps": 8, "sequences": 8, "prompts": ["the furnace"]}}),
}  # fmt: skip

TOLERANCES = {"fp32": 2e-4, "bf16": 1e-2, "fp8": 3e-2}
"""Of a loss, relative, on every step: sums in another order, and how often each format rounds in 8 steps."""
NORM_TOLERANCE_FACTOR = 10.0
"""Gradient norms and the figures of layers may differ by so many times the tolerance of losses."""


def training_of(reference: Reference, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `training` section of a reference, with the changes of a case."""
    model = {} if reference.base is not None else {"model": {"shape": {**SHAPE, **reference.shape}}}
    found = {**model, **BASE, **reference.changes, **(changes or {})}
    if reference.base is not None:
        del found["tokenizer"]
    return found


def write_documents(path: Path) -> None:
    """Write the data of all references: short documents of made-up sentences, the same on every machine."""
    if path.exists():
        return
    chosen = random.Random(1)
    rows = [{"text": " ".join(chosen.choices(WORDS, k=chosen.randrange(10, 160)))} for _ in range(1500)]
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.replace(path)


class Job:
    """A run of `python -m trainer` with its output in `folder`."""

    def __init__(
        self, folder: Path, training: dict[str, Any], device: Device, *, data: Path | None = None,
        base: Path | None = None, every_steps: int = 1_000_000, environment: dict[str, str] | None = None,
        shadow: int | str = "auto", restarts: int = 1, profile: int | None = None,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.run = self.finished(folder)
        self.log = folder / "log"
        checkpoint = {"every_steps": every_steps, "keep_last": 2, "shadow_every_steps": shadow}
        retry = {"restarts_in_place": restarts}
        job = {"name": "kit", "training": training, "checkpoint": checkpoint, "retry": retry}
        (folder / "job.json").write_text(json.dumps(job))  # JSON is YAML
        command = [sys.executable, "-m", "trainer", str(folder / "job.json"), "--output", str(folder)]
        command += [] if data is None else ["--data", str(data)]
        command += [] if base is None else ["--model", str(base)]
        command += [] if profile is None else ["--profile", f"{profile}:{profile}"]
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **(environment or {}), **hidden}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    @staticmethod
    def finished(folder: Path) -> FinishedRun:
        """Return the run of which `folder` is the output."""
        return FinishedRun(EndClass.COMPLETED, folder)

    def wait(self) -> FinishedRun:
        """Wait for the end. Raises AssertionError with the end of the log if the run did not complete."""
        status = self.process.wait()
        assert status == EXIT_STATUS[EndClass.COMPLETED], f"exit status {status}: {self.tail()}"
        return self.run

    def kill_when(self, condition: Callable[[FinishedRun], bool]) -> None:
        """Kill the run without a warning as soon as the condition holds. Raises AssertionError if it ends before."""
        try:
            while not condition(self.run):
                assert self.process.poll() is None, f"the run ended before it was to be killed: {self.tail()}"
                time.sleep(0.05)  # between looks at files that another process writes
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def tail(self) -> str:
        """Return the last lines that the run printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])


def fresh(folder: Path) -> Path:
    """Return the folder without what an interrupted part left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def differences(found: FinishedRun, expected: FinishedRun, tolerance: float) -> dict[str, float]:
    """Return the largest relative differences of losses, gradient norms and the figures of layers. Raises
    AssertionError where one is larger than its tolerance, or a step is missing."""
    worst = {}
    layers = sorted({name for point in expected.points() for name in point["values"] if name.startswith("layers/")})
    for name in ("train/loss", "train/gradient_norm", *layers):
        factor = 1.0 if name == "train/loss" else NORM_TOLERANCE_FACTOR
        mine, theirs = found.series(name), expected.series(name)
        assert mine.keys() == theirs.keys() and mine, f"{name}: steps {sorted(mine)} instead of {sorted(theirs)}"
        gaps = {step: abs(mine[step] - value) / abs(value) for step, value in theirs.items()}
        worst[name], step = max((gap, step) for step, gap in gaps.items())
        assert worst[name] <= factor * tolerance, (
            f"{name} of step {step}: {mine[step]:.6f} on the device, {theirs[step]:.6f} on the CPU, "
            f"{worst[name]:.1e} apart where {factor * tolerance:.0e} is allowed"
        )
    return worst
