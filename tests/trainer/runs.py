"""Tiny runs for tests: a text, a spec that trains on it in a second, and ways to start it."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.agent.worker_process import run_worker
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.manifest import StoredFile
from trainer.contract.run import DataKeys, DatasetSource, EndClass, RunConfig, StopRequest
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.resilience.assignment import Assignment, FolderConnection

WORDS = [
    "the", "furnace", "keeps", "an", "even", "heat", "for", "weeks", "and", "nobody", "has", "to", "watch", "it",
    "while", "gold", "is", "made", "of", "lead",
]  # fmt: skip

TINY: dict[str, Any] = {
    "model": {
        "shape": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 64}
    },
    "data": {"source": "dataset:tiny"},
    "tokenizer": {"vocab_size": 300},
    "steps": 20,
    "tokens_per_step": 256,
    "sequence_length": 32,
    "schedule": {"warmup_steps": 4},
    "evaluation": {"every_steps": 10, "sequences": 8},
    "seed": 5,
}

MIXTURE: dict[str, Any] = {
    "hidden_size": 32, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 64,
    "moe": {"num_experts": 4, "experts_per_token": 2, "expert_size": 32, "shared_experts": 1, "first_dense_layers": 1,
            "scoring": "sigmoid", "balance_rate": 0.001},
}  # fmt: skip
FIVE_AXES: dict[str, Any] = {
    "pipeline": 2,
    "context": 2,
    "tensor": 2,
    "expert": 2,
    "zero": 3,
    "micro_batch_sequences": 2,
}
"""On 8 ranks: pipeline, context, tensor; parameters sharded over the context ranks, experts spread over them."""


def tiny_text(characters: int = 60_000) -> str:
    chosen = random.Random(1)
    lines = []
    while sum(map(len, lines)) < characters:
        lines.append(" ".join(chosen.choices(WORDS, k=12)) + "\n")
    return "".join(lines)


def tiny_training(**changes: Any) -> TrainingSpec:
    return TrainingSpec.model_validate({**TINY, **changes})


@dataclass
class FinishedRun:
    end_class: EndClass
    output: Path

    @property
    def end(self) -> dict:
        return json.loads((self.output / "end.json").read_text())

    def series(self, name: str) -> dict[int, float]:
        """Step to value; where a step was taken twice, the later one."""
        found = {}
        for point in self.points():
            if name in point["values"]:
                found[point["step"]] = point["values"][name]
        return found

    def points(self) -> list[dict]:
        """All metric points, in the order in which they were reported."""
        return lines_of(self.output / "metrics.jsonl")

    def events(self, kind: str) -> list[dict]:
        return [event["data"] for event in lines_of(self.output / "progress.jsonl") if event["type"] == kind]

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.output / "store" / "checkpoints").glob("step-*"))


def lines_of(path: Path) -> list[dict]:
    """The lines of a JSON Lines file but for the last one, if it is being written."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def run_alone(
    output: Path,
    training: TrainingSpec,
    *,
    processes: int = 1,
    every_steps: int = 10,
    every_minutes: float | str | None = None,
    shadow: int | str = "none",
    keep_last: int = 2,
    keep_best: bool = False,
    keep_every_steps: int | None = None,
    restarts: int = 0,
    preflight: bool = False,
    data: Path | None = None,
    files: list[Path] | None = None,
    at_first_checkpoint: Callable[[Supervisor], None] | None = None,
    at_start: Callable[[Supervisor], None] | None = None,
) -> FinishedRun:
    """A standalone run in worker processes of this test process's fork server. `files`: of a mixture, one a source.

    `at_first_checkpoint` is called, while training continues, as soon as a new checkpoint's manifest is stored;
    `at_start` beside the run, from its beginning.
    """
    output.mkdir(parents=True, exist_ok=True)
    if data is None:
        data = output.parent / "tiny.txt"
        data.write_text(tiny_text())
    settings = LocalSettings(
        training,
        ProcessLayout(processes_per_node=processes),
        CheckpointPolicy(
            every_steps=every_steps,
            every_minutes=every_minutes,
            shadow_every_steps=shadow,
            keep_last=keep_last,
            keep_best=keep_best,
            keep_every_steps=keep_every_steps,
        ),
        restarts,
        preflight=preflight,
    )
    place = NodeConfig(output / "work", local_files=files or [data])
    supervisor = Supervisor(FolderConnection(output, settings), LocalPlatform(output, settings), place)
    ended = threading.Event()
    if at_first_checkpoint is not None:
        arguments = (output, supervisor, at_first_checkpoint, ended)
        threading.Thread(target=_watch_checkpoints, args=arguments, daemon=True).start()
    if at_start is not None:
        threading.Thread(target=at_start, args=(supervisor,), daemon=True).start()
    try:
        return FinishedRun(supervisor.run(), output)
    finally:
        ended.set()


def _watch_checkpoints(output: Path, supervisor: Supervisor, act: Callable, ended: threading.Event) -> None:
    before = set(output.glob("store/checkpoints/*/manifest.json"))
    while not ended.wait(0.002):
        if set(output.glob("store/checkpoints/*/manifest.json")) - before:
            act(supervisor)
            return


def kill_rank(local_rank: int) -> Callable[[Supervisor], None]:
    """An action for `at_first_checkpoint`."""

    def kill(supervisor: Supervisor) -> None:
        os.kill(supervisor.worker_group._forked[local_rank].process.pid, signal.SIGKILL)

    return kill


def stop(supervisor: Supervisor) -> None:
    """An action for `at_first_checkpoint`."""
    supervisor.request_stop(StopRequest.PAUSE)


def work_block_by_block(assignment: Assignment) -> None:
    """A worker that shards as a large model would be, each block by itself; stands in for `run_worker`."""
    import trainer.parallel.data

    trainer.parallel.data.MAX_SINGLE_GROUP_BYTES = 0
    run_worker(assignment)


def work_with_a_poisoned_step(assignment: Assignment) -> None:
    """A worker in which the gradients of the seventh step have a NaN from the data of data rank 0, on any rank that
    computes them; stands in for `run_worker`."""
    import torch

    from trainer.data.batch import MicroBatch
    from trainer.parallel.parallelize import ParallelModel
    from trainer.training import loop

    healthy, counted_tokens, now = ParallelModel._loss, loop.counted_tokens, (-1, -1)

    def note_step(state: Any, batches: Any, step: int) -> object:
        nonlocal now
        now = (step, state.part.rank)
        return counted_tokens(state, batches, step)

    def loss_of(model: ParallelModel, batch: MicroBatch) -> torch.Tensor:
        loss = healthy(model, batch)
        if loss.requires_grad and now == (6, 0):
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss

    ParallelModel._loss, loop.counted_tokens = loss_of, note_step
    run_worker(assignment)


def platform_run(training: TrainingSpec, *, processes: int = 1, **changes: Any) -> tuple[RunConfig, DataKeys, dict]:
    """What a platform would hand out for a tiny encrypted data set: run, keys, and the objects in its store."""
    keys = DataKeys(job=new_keyset(), dataset=new_keyset())
    key = "datasets/dset_tiny/raw-000.part"
    ciphertext, part = Encryptor(keys.dataset).encrypt(tiny_text().encode(), key)
    fields = {
        "job_id": "job_1",
        "attempt_id": "att_1",
        "attempt_number": 1,
        "prefix": "teams/t/jobs/job_1/",
        "layout": ProcessLayout(processes_per_node=processes),
        "training": training,
        "checkpoint": CheckpointPolicy(every_steps=10),
        "dataset": DatasetSource(
            dataset_id="dset_tiny", name="tiny", origin="sealed", raw=[StoredFile(path="tiny.txt", parts=[part])]
        ),
        "heartbeat_seconds": 0.2,
    }
    return RunConfig.model_validate({**fields, **changes}), keys, {key: ciphertext}
