"""Whole tiny runs with what a spec may say of optimisation: a ramp, Muon, groups, schedules."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.counting import work_and_list_micro_batches
from tests.trainer.runs import FinishedRun, run_alone, stop, tiny_training, work_with_a_poisoned_step
from trainer.agent import worker_group
from trainer.client.local import KEY_FILE
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import MANIFEST_NAME, CheckpointManifest
from trainer.contract.run import EndClass
from trainer.storage.folder import FolderStorage

LOSS = "train/loss"
RAMP = {"start_tokens_per_step": 64, "steps": 50}
MUON: dict[str, Any] = {
    "optimizer": {
        "name": "muon",
        "muon": {"learning_rate": 0.01},
        "groups": [{"pattern": "embedding.*", "weight_decay_factor": 0.0, "learning_rate_factor": 2.0}],
    },
    "schedule": {"name": "cosine", "warmup_steps": 4},
    "batch_ramp": RAMP,
}


def tokens_seen(run: FinishedRun) -> dict[int, int]:
    """By step, of the checkpoints that are left."""
    encryptor, storage = Encryptor((run.output / KEY_FILE).read_text()), FolderStorage(run.output / "store")
    keys = [f"checkpoints/{folder.name}/{MANIFEST_NAME}" for folder in run.checkpoints]
    manifests = [
        CheckpointManifest.model_validate_json(encryptor.decrypt_unlisted(storage.get(key), key)) for key in keys
    ]
    return {manifest.step: manifest.tokens_seen for manifest in manifests}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("muon") / "run", tiny_training(steps=60, **MUON), processes=2)


def test_a_run_with_muon_and_a_ramp_learns_and_counts_its_tokens(undisturbed: FinishedRun) -> None:
    losses = undisturbed.series(LOSS)
    assert undisturbed.end_class is EndClass.COMPLETED
    assert losses[60] < losses[1] - 0.5
    sizes = [2 + 6 * step // 50 if step < 50 else 8 for step in range(60)]
    assert tokens_seen(undisturbed) == {50: 32 * sum(sizes[:50]), 60: 32 * sum(sizes)}


def test_a_resume_within_a_ramp_is_invisible(undisturbed: FinishedRun, tmp_path: Path) -> None:
    training, output = tiny_training(steps=60, **MUON), tmp_path / "run"
    stopped = run_alone(output, training, processes=2, every_steps=3, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED
    resumed = run_alone(output, training, processes=2)
    assert resumed.series(LOSS) == undisturbed.series(LOSS)


def test_the_warm_up_has_the_micro_batches_of_a_full_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of their sizes, since torch compiles a model for each."""
    monkeypatch.setattr(worker_group, "run_worker", work_and_list_micro_batches)
    training = tiny_training(
        steps=4, tokens_per_step=160, batch_ramp={"start_tokens_per_step": 64, "steps": 3},
        parallelism={"micro_batch_sequences": 3}, evaluation={"every_steps": 4, "sequences": 4},
    )  # fmt: skip
    run = run_alone(tmp_path / "run", training)
    assert run.end_class is EndClass.COMPLETED, run.end
    first, *_, last = (run.output / "work" / "sizes").read_text().splitlines()
    assert first == last == "[3, 2]"


@pytest.mark.parametrize(("processes", "parallelism"), [(1, {}), (2, {"zero": 3})])
def test_the_mesh_does_not_change_the_loss(
    undisturbed: FinishedRun, tmp_path: Path, processes: int, parallelism: dict
) -> None:
    other = run_alone(tmp_path / "run", tiny_training(steps=60, parallelism=parallelism, **MUON), processes=processes)
    assert other.series(LOSS) == pytest.approx(undisturbed.series(LOSS), rel=1e-4)


def test_a_large_gradient_is_reported_and_the_run_continues(tmp_path: Path) -> None:
    watch = {"gradient_watch": {"absolute": 1e-3}}
    run = run_alone(tmp_path / "run", tiny_training(optimizer=watch), processes=1)
    assert run.end_class is EndClass.COMPLETED
    (event,) = run.events("gradient.large")
    assert event["step"] == 1 and event["norm"] == pytest.approx(run.series("train/gradient_norm")[1], rel=1e-3)
    assert event["because"] == "above optimizer.gradient_watch.absolute 0.001"
    assert (event["first_sequence"], event["last_sequence"]) == (0, 7)


def test_a_pattern_that_matches_nothing_is_a_bad_spec(tmp_path: Path) -> None:
    groups = [{"pattern": "block.*.mlp.up.weight", "weight_decay_factor": 0.0}]
    run = run_alone(tmp_path / "run", tiny_training(optimizer={"groups": groups}), processes=2)
    assert run.end_class is EndClass.BAD_SPEC
    assert "'block.*.mlp.up.weight'; similar names: blocks." in run.end["message"]


@pytest.mark.parametrize(
    "changes", [MUON, {"parallelism": {"compression": {"kind": "int8"}}}, {"parallelism": {"zero": 3}}],
    ids=["muon", "int8", "zero"],
)  # fmt: skip
def test_a_poisoned_step_is_skipped_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work_with_a_poisoned_step)
    run = run_alone(tmp_path / "run", tiny_training(**changes), processes=2)
    assert run.end_class is EndClass.COMPLETED
    (event,) = run.events("step.skipped")
    sequences = (12, 13) if "batch_ramp" in changes else (48, 55)
    assert (event["step"], event["first_sequence"], event["last_sequence"]) == (7, *sequences)
    assert event["layers"] == "not finite in head, norm, blocks.1.mlp and 4 more"
    assert run.series("train/skipped_steps") == {step: float(step >= 7) for step in range(1, 21)}
    assert run.series(LOSS)[20] < run.series(LOSS)[1] - 0.3
