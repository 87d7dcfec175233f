"""Memory that runs out: the same step in smaller micro-batches, agreed by all ranks, or an end that names remedies."""

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import FinishedRun, run_alone, stop, tiny_text, tiny_training
from tests.trainer.test_runs import final_tensors
from trainer.agent import worker_group
from trainer.agent.worker_process import run_worker
from trainer.client.local import KEY_FILE, LocalPlatform, LocalSettings
from trainer.contract.encryption import Encryptor
from trainer.contract.launch_plan import smaller_micro_batch
from trainer.contract.manifest import MANIFEST_NAME, CheckpointManifest
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.contract.training import ProcessLayout, TrainingSpec
from trainer.resilience.assignment import Assignment
from trainer.resilience.memory import MICRO_BATCH_NAME, load_micro_batch, reduce_micro_batch, store_micro_batch
from trainer.resilience.shared_status import SharedStatus
from trainer.storage.folder import FolderStorage

ROOM = 1300 * 2**20
"""Less than a rank takes beside its interpreter (about 1.7 GB), more than with half the micro-batch (about 1 GB)."""
WIDE: dict[str, Any] = {
    "sequence_length": 64,
    "tokens_per_step": 2 * 3072 * 64,
    "steps": 1,
    "schedule": {"warmup_steps": 1},
    "evaluation": {"every_steps": 3, "sequences": 8},
}


def allow(num_bytes: int) -> None:
    """The kernel refuses this process more than it has now and so many bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")]
    limit = int(line.split()[1]) * 1024 + num_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def work_with_little_memory_on_rank_1(assignment: Assignment) -> None:
    """Stands in for `run_worker`."""
    if assignment.rank == 1:
        import torch

        torch.ones(2, 2, requires_grad=True).mm(torch.ones(2, 2)).sum().backward()  # threads have their stacks by now
        allow(ROOM)
    run_worker(assignment)


def newest_manifest(run: FinishedRun) -> CheckpointManifest:
    key = f"checkpoints/{run.checkpoints[-1].name}/{MANIFEST_NAME}"
    content = FolderStorage(run.output / "store").get(key)
    return CheckpointManifest.model_validate_json(
        Encryptor((run.output / KEY_FILE).read_text()).decrypt_unlisted(content, key)
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tiny_text() * 25)
    return path


@pytest.mark.slow
def test_one_rank_out_of_memory_halves_the_micro_batches_of_all_and_no_number_changes(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run_alone(tmp_path / "plain", tiny_training(**WIDE), processes=2, data=text)
    assert newest_manifest(plain).micro_batch == 3072
    monkeypatch.setattr(worker_group, "run_worker", work_with_little_memory_on_rank_1)
    run = run_alone(tmp_path / "run", tiny_training(**WIDE), processes=2, data=text)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.events("memory.micro_batch_halved") == [{"before": 3072, "after": 1536, "step": -1}]
    assert run.series("train/loss") == pytest.approx(plain.series("train/loss"), rel=1e-6)
    assert run.series("train/gradient_norm") == pytest.approx(plain.series("train/gradient_norm"), rel=1e-4)
    assert run.series("evaluation/loss") == pytest.approx(plain.series("evaluation/loss"), rel=1e-6)
    assert newest_manifest(run).micro_batch == 1536
    assert (run.output / "store" / MICRO_BATCH_NAME).exists()


def test_a_resume_takes_the_micro_batches_of_its_checkpoint(tmp_path: Path) -> None:
    small = tiny_training(steps=4, evaluation={"sequences": 8}, parallelism={"micro_batch_sequences": 1})
    assert newest_manifest(run_alone(tmp_path / "run", small)).micro_batch == 1
    resumed = run_alone(tmp_path / "run", tiny_training(steps=5, evaluation={"sequences": 8}))
    assert (newest_manifest(resumed).step, newest_manifest(resumed).micro_batch) == (5, 1)


def test_an_attempt_takes_what_was_noted_for_its_spec_and_mesh(tmp_path: Path) -> None:
    training, output = tiny_training(steps=2, schedule={"warmup_steps": 1}), tmp_path / "run"
    layout = ProcessLayout(processes_per_node=2)
    platform = LocalPlatform(output, LocalSettings(training, layout))
    storage, encryptor, run = platform.storage, Encryptor(platform.keys().job), platform.run()
    store_micro_batch(storage, encryptor, run, 300, 2)
    assert load_micro_batch(storage, encryptor, run, 300) == 2
    for changes in ({"layout": ProcessLayout()}, {"training": tiny_training(steps=3, schedule={"warmup_steps": 1})}):
        assert load_micro_batch(storage, encryptor, run.model_copy(update=changes), 300) is None
    assert newest_manifest(run_alone(output, training, processes=2)).micro_batch == 2


@pytest.mark.slow
def test_micro_batches_of_a_size_that_the_spec_says_end_the_run_with_remedies(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work_with_little_memory_on_rank_1)
    said = tiny_training(**WIDE, parallelism={"micro_batch_sequences": 3072})
    run = run_alone(tmp_path / "run", said, processes=2, restarts=1, data=text)
    assert run.end_class is EndClass.OUT_OF_MEMORY
    assert run.events("memory.micro_batch_halved") == []
    for words in ("can't allocate memory", "3072 sequences", "micro_batch_sequences", "activation_checkpointing full"):
        assert words in run.end["message"]


@pytest.mark.slow
def test_offloading_in_the_middle_of_a_run_changes_no_bit(tmp_path: Path) -> None:
    fields = {"steps": 80, "parallelism": {"zero": 3}, "precision": "bf16"}
    training, output = tiny_training(**fields), tmp_path / "run"
    offloading = tiny_training(**fields, optimizer={"offload": True})
    undisturbed = run_alone(tmp_path / "undisturbed", training, processes=2)
    assert run_alone(output, training, processes=2, at_first_checkpoint=stop).end_class is EndClass.STOPPED
    run = run_alone(output, offloading, processes=2)
    assert run.end_class is EndClass.COMPLETED
    assert run.series("train/loss") == undisturbed.series("train/loss")
    assert final_tensors(run) == final_tensors(undisturbed)


def test_the_size_that_the_workers_chose_is_halved_also_above_the_limit_of_logits(tmp_path: Path) -> None:
    training = tiny_training(tokens_per_step=32 * 32)
    run = LocalPlatform(tmp_path / "run", LocalSettings(training, ProcessLayout())).run()
    vocab_size = 2**22  # 256 MiB of logits are less than one sequence of 32 tokens
    assert reduce_micro_batch(run, vocab_size, None, None) == (1, None)
    assert reduce_micro_batch(run, vocab_size, None, 32) == (32, 16)
    assert reduce_micro_batch(run, vocab_size, 16, 16) == (16, 8)


def test_workers_report_the_size_that_they_chose(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", tiny_training(steps=1, schedule={"warmup_steps": 1}), processes=2)
    (resolved,) = run.events("settings.resolved")
    assert resolved == {
        "device": "cpu", "precision": "fp32", "deterministic": False, "attention": "flash", "compile": False,
        "micro_batch_sequences": newest_manifest(run).micro_batch,
    }  # fmt: skip
    (board,) = (run.output / "work").glob("generation-*/board")
    assert SharedStatus(board, 2).micro_batch() == newest_manifest(run).micro_batch == 4


@pytest.mark.parametrize(
    ("changes", "sizes", "size", "smaller"),
    [
        ({}, MeshSizes(), 32, 16),
        ({}, MeshSizes(replicate=2), 9, 4),
        ({}, MeshSizes(), 1, None),
        ({"micro_batch_sequences": 8}, MeshSizes(), 8, None),
        ({"pipeline": 4, "pipeline_schedule": "looped_bfs"}, MeshSizes(pipeline=4), 4, 2),
        # 11 micro-batches of 3 on 4 ranks are 2 rounds, which 11 cannot be divided into: 16 of 2 are 4
        ({"pipeline": 4, "pipeline_schedule": "looped_bfs"}, MeshSizes(pipeline=4), 7, 2),
    ],
)
def test_a_smaller_micro_batch_is_one_that_the_schedule_takes(
    changes: dict, sizes: MeshSizes, size: int, smaller: int | None
) -> None:
    training: TrainingSpec = tiny_training(tokens_per_step=32 * 32, parallelism=changes)
    assert smaller_micro_batch(training, sizes, 300, size) == smaller
