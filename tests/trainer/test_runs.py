"""Whole tiny runs in real processes: what a run computes, how it ends, and that a resume is invisible."""

import math
import re
import signal
from pathlib import Path

import pytest

from tests.trainer.runs import FinishedRun, kill_rank, run_alone, stop, tiny_text, tiny_training, work_block_by_block
from trainer.agent import worker_group
from trainer.checkpoint.file import read_entries, stored_entries
from trainer.client.local import KEY_FILE
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import MANIFEST_NAME, CheckpointManifest
from trainer.contract.run import EndClass
from trainer.storage.folder import FolderStorage

LOSS = "train/loss"


def final_tensors(run: FinishedRun) -> dict[tuple[str, int, tuple[int, ...]], bytes]:
    """Every stored tensor of the newest checkpoint, by name and where it begins."""
    encryptor = Encryptor((run.output / KEY_FILE).read_text())
    storage = FolderStorage(run.output / "store")
    key = f"checkpoints/{run.checkpoints[-1].name}/{MANIFEST_NAME}"
    manifest = CheckpointManifest.model_validate_json(encryptor.decrypt_unlisted(storage.get(key), key))
    found = {}
    for number, file in enumerate(manifest.files[:-1]):
        entries = stored_entries(storage, encryptor, file)
        for shard in read_entries(storage, encryptor, file, entries):
            found[shard.stored, number, shard.offsets] = shard.tensor.numpy().tobytes()
    return found


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """20 steps by two processes, undisturbed."""
    return run_alone(tmp_path_factory.mktemp("two") / "run", tiny_training(), processes=2)


def test_the_loss_falls_and_the_run_completes(two_ranks: FinishedRun) -> None:
    losses = two_ranks.series(LOSS)
    assert two_ranks.end_class is EndClass.COMPLETED
    assert sorted(losses) == list(range(1, 21))
    assert losses[20] < losses[1] - 0.5


@pytest.mark.parametrize(
    "parallelism",
    [
        pytest.param({}, id="replicated", marks=pytest.mark.slow),
        pytest.param({"zero": 3}, id="sharded"),
        pytest.param(
            {"compression": {"kind": "int8"}}, id="with the errors of compressed sums", marks=pytest.mark.slow
        ),
    ],
)
def test_a_killed_run_resumes_bitwise_equal(tmp_path: Path, parallelism: dict) -> None:
    training = tiny_training(steps=80, parallelism=parallelism)
    undisturbed = run_alone(tmp_path / "undisturbed", training, processes=2)
    output = tmp_path / "run"
    first = run_alone(output, training, processes=2, at_first_checkpoint=kill_rank(1))
    assert (first.end_class, first.end["exit_codes"]["rank-1"]) == (EndClass.PROCESS_KILLED, -signal.SIGKILL)
    assert first.end["message"] == "rank 1 was killed by SIGKILL"
    second = run_alone(output, training, processes=2)
    assert second.end_class is EndClass.COMPLETED
    assert second.events("phase.finished")[-1]["phase"] == "first_step"
    assert second.series(LOSS) == undisturbed.series(LOSS)
    assert second.series("evaluation/loss") == undisturbed.series("evaluation/loss")
    assert final_tensors(second) == final_tensors(undisturbed)


def test_a_killed_worker_is_replaced_within_the_run_and_changes_no_number(tmp_path: Path) -> None:
    training = tiny_training(steps=80)
    undisturbed = run_alone(tmp_path / "undisturbed", training, processes=2)
    run = run_alone(tmp_path / "run", training, processes=2, restarts=1, at_first_checkpoint=kill_rank(0))
    assert run.end_class is EndClass.COMPLETED
    (restarted,) = run.events("generation.started")
    assert (restarted["generation"], restarted["end_class"]) == (1, EndClass.PROCESS_KILLED)
    began, resumed = (event["step"] for event in run.events("training.started"))
    assert began == 0 < resumed <= restarted["step"]
    assert run.series(LOSS) == undisturbed.series(LOSS)
    assert final_tensors(run) == final_tensors(undisturbed)


def test_checkpoints_are_saved_by_time_too(two_ranks: FinishedRun, tmp_path: Path) -> None:
    """A save takes longer than the interval, so that each begins when the one before is stored."""
    run = run_alone(tmp_path / "run", tiny_training(), processes=2, every_steps=1000, every_minutes=0.0005)
    saved = [event["step"] for event in run.events("checkpoint.saved")]
    assert len(saved) > 2, saved
    assert saved == sorted(set(saved))
    assert run.series(LOSS) == two_ranks.series(LOSS)


@pytest.mark.parametrize("processes", [1, 3])
def test_the_number_of_processes_does_not_change_the_loss(
    two_ranks: FinishedRun, tmp_path: Path, processes: int
) -> None:
    other = run_alone(tmp_path / "run", tiny_training(), processes=processes)
    assert other.series(LOSS) == pytest.approx(two_ranks.series(LOSS), rel=1e-6)
    assert other.series("train/gradient_norm") == pytest.approx(two_ranks.series("train/gradient_norm"), rel=1e-4)


def test_micro_batches_do_not_change_the_loss(two_ranks: FinishedRun, tmp_path: Path) -> None:
    cut = tiny_training(parallelism={"micro_batch_sequences": 1})
    assert run_alone(tmp_path / "run", cut, processes=2).series(LOSS) == pytest.approx(two_ranks.series(LOSS), rel=1e-6)


@pytest.mark.parametrize("changes", [{}, {"activation_checkpointing": "full"}, {"precision": "bf16"}])
def test_a_model_sharded_block_by_block_computes_the_same(
    two_ranks: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work_block_by_block)
    run = run_alone(tmp_path / "run", tiny_training(parallelism={"zero": 3}, **changes), processes=2)
    assert run.end_class is EndClass.COMPLETED
    tolerance = 2e-2 if "precision" in changes else 1e-6
    assert run.series(LOSS) == pytest.approx(two_ranks.series(LOSS), rel=tolerance)
    assert run.series("evaluation/loss") == pytest.approx(two_ranks.series("evaluation/loss"), rel=tolerance)


def test_recomputing_activations_does_not_change_the_loss(two_ranks: FinishedRun, tmp_path: Path) -> None:
    recomputed = tiny_training(activation_checkpointing="full")
    assert run_alone(tmp_path / "run", recomputed, processes=2).series(LOSS) == two_ranks.series(LOSS)


@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(1, 2, marks=pytest.mark.slow), (2, 3)],
)
def test_a_checkpoint_is_read_by_another_number_of_processes(tmp_path: Path, before: int, after: int) -> None:
    training = tiny_training(steps=60)
    undisturbed = run_alone(tmp_path / "undisturbed", training)
    output = tmp_path / "run"
    stopped = run_alone(output, training, processes=before, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED
    resumed = run_alone(output, training, processes=after)
    assert resumed.end_class is EndClass.COMPLETED
    assert sorted(resumed.series(LOSS)) == list(range(1, 61))
    assert resumed.series(LOSS) == pytest.approx(undisturbed.series(LOSS), rel=1e-4)


def test_a_stop_request_leaves_a_checkpoint_of_the_last_step(tmp_path: Path) -> None:
    training = tiny_training(steps=5000)
    run = run_alone(tmp_path / "run", training, processes=2, every_steps=7, at_first_checkpoint=stop)
    assert (run.end_class, run.end["stopped_for"]) == (EndClass.STOPPED, "pause")
    steps = max(run.series(LOSS))
    assert run.end["last_step"] == steps < 5000
    assert run.checkpoints[-1].name.split("-")[1] == f"{steps:08d}"
    saved = run.events("checkpoint.saved")
    assert [event["final"] for event in saved] == [*[False] * (len(saved) - 1), True]
    assert all(event["blocked_seconds"] > 0 for event in saved)


def test_a_checkpoint_without_its_manifest_does_not_exist(tmp_path: Path) -> None:
    output = tmp_path / "run"
    run = run_alone(output, tiny_training(), every_steps=10)
    assert [path.name for path in run.checkpoints] == ["step-00000010-1-0", "step-00000020-1-0"]
    (run.checkpoints[1] / MANIFEST_NAME).unlink()
    again = run_alone(output, tiny_training(steps=20), every_steps=10)
    assert [event["step"] for event in again.events("checkpoint.saved")] == [10, 20, 20]


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", tiny_training(), every_steps=4, keep_last=2)
    assert [path.name.split("-")[1] for path in run.checkpoints] == ["00000016", "00000020"]


def test_milestones_are_saved_and_kept(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", tiny_training(), every_steps=4, keep_last=1, keep_every_steps=6)
    assert [path.name.split("-")[1] for path in run.checkpoints] == ["00000006", "00000012", "00000018", "00000020"]
    assert [event["step"] for event in run.events("checkpoint.saved")] == [4, 6, 8, 12, 16, 18, 20]


def damage(checkpoint: Path) -> None:
    part = checkpoint / "rank0-000.part"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def test_a_run_resumes_from_the_newest_checkpoint_that_can_be_read(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", tiny_training(steps=15), every_steps=5, keep_last=3)
    undamaged, *newer = run.checkpoints
    damage(newer[0])
    (newer[1] / "rank0-000.part").unlink()
    again = run_alone(tmp_path / "run", tiny_training(steps=20))
    assert again.end_class is EndClass.COMPLETED
    because = [event["because"] for event in again.events("generation.started")]
    assert ["does not exist" in because[0], "rank0-000.part: digest differs" in because[1]] == [True, True]
    assert [re.findall(r"checkpoint of step (\d+) is damaged", text) for text in because] == [["15"], ["10"]]
    assert sorted(again.series(LOSS)) == list(range(1, 21))


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_again_unasked(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", tiny_training(steps=10))
    damage(run.checkpoints[-1])
    again = run_alone(tmp_path / "run", tiny_training(steps=20))
    assert again.end_class is EndClass.CHECKPOINT_DAMAGED
    assert "no checkpoint" in again.end["message"]


def test_other_data_than_the_checkpoint_was_trained_on_is_refused(tmp_path: Path) -> None:
    run_alone(tmp_path / "run", tiny_training(steps=10))
    other = tmp_path / "other.txt"
    other.write_text(tiny_text()[::-1])
    again = run_alone(tmp_path / "run", tiny_training(steps=20), data=other)
    assert again.end_class is EndClass.DATA_ERROR
    assert "checkpoint of step 10 was trained on data with the fingerprint" in again.end["message"]


def test_a_loss_that_is_lost_ends_the_run_as_diverged(tmp_path: Path) -> None:
    wild = tiny_training(steps=200, optimizer={"learning_rate": 1.0, "gradient_clip": None, "epsilon": 1e-30},
                         schedule={"warmup_steps": 0})  # fmt: skip
    poisoned = wild.model_copy(update={"optimizer": wild.optimizer.model_copy(update={"learning_rate": 1e30})})
    run = run_alone(tmp_path / "run", poisoned, processes=2, every_steps=1000)
    assert run.end_class is EndClass.LOSS_DIVERGED
    assert "8 consecutive steps" in run.end["message"]
    assert "learning_rate" in run.end["message"]


def test_bf16_trains_alike_on_one_process_and_two(two_ranks: FinishedRun, tmp_path: Path) -> None:
    training = tiny_training(precision="bf16")
    one = run_alone(tmp_path / "one", training)
    two = run_alone(tmp_path / "two", training, processes=2)
    assert one.end_class is two.end_class is EndClass.COMPLETED
    assert one.series(LOSS) == pytest.approx(two.series(LOSS), rel=5e-3)
    assert two.series(LOSS)[20] == pytest.approx(two_ranks.series(LOSS)[20], rel=2e-2)


def test_fewer_sequences_than_processes_is_a_bad_spec(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", tiny_training(tokens_per_step=32), processes=2)
    assert run.end_class is EndClass.BAD_SPEC
    assert "tokens_per_step: 32 tokens are 1 sequences" in run.end["message"]


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("a.txt", b"", {}, "has no text"),
        ("a.txt", b"caf\xe9 " * 500, {}, "a.txt is not UTF-8: byte 0xe9 at offset 3"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', {}, "a.jsonl line 2 is not JSON"),
        ("a.jsonl", b'{"body": "x"}\n', {}, "a.jsonl line 1 has no field 'text' (it has: body)"),
        ("a.jsonl", b'{"text": 7}\n', {}, "field 'text' is a int"),
        ("a.txt", b"too short\n", {}, "train split of dataset:tiny has"),
        ("a.txt", tiny_text(3000).encode(), {"sequence_length": 128}, "validation split of dataset:tiny has"),
    ],
)
def test_bad_data_ends_the_run_and_says_where(
    tmp_path: Path, name: str, content: bytes, changes: dict, message: str
) -> None:
    data = tmp_path / name
    data.write_bytes(content)
    run = run_alone(tmp_path / "run", tiny_training(**changes), data=data)
    assert run.end_class is EndClass.DATA_ERROR
    assert message in run.end["message"]


def test_a_run_of_epochs_ends_after_them_and_a_rerun_does_not_continue(tmp_path: Path) -> None:
    """The schedule is that of the shorter run: warm-up takes a fifth of it at most, and the last rate is the lowest."""
    training = tiny_training(epochs=0.1, steps=5000, schedule={"warmup_steps": 4000})
    run = run_alone(tmp_path / "run", training, processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    (resolved,) = run.events("steps.resolved")
    sequences_per_step = training.tokens_per_step // training.sequence_length
    steps = math.ceil(0.1 * resolved["sequences"] / sequences_per_step)
    assert steps >= 5
    assert resolved == {
        "steps": steps, "warmup_steps": steps // 5, "epochs": 0.1, "sequences": resolved["sequences"],
    }  # fmt: skip
    rates = run.series("train/learning_rate")
    assert max(rates) == steps and rates[steps // 5] == max(rates.values())
    assert rates[steps] == min(rates.values()) == pytest.approx(0.05 * max(rates.values()))
    assert [event["step"] for event in run.events("checkpoint.saved") if event["final"]] == [steps]
    again = run_alone(tmp_path / "run", training, processes=2)
    assert again.end_class is EndClass.COMPLETED, again.end["message"]
    assert max(again.series("train/loss")) == steps
