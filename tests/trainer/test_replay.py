"""Replays: an honest run is equal bit for bit, and every planted cheat is found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import platform_run, tiny_text, tiny_training
from tests.trainer.test_platform_runs import supervisor_for
from trainer.agent import worker_group
from trainer.agent.worker_process import run_worker
from trainer.contract.encryption import Encryptor, authenticate, new_keyset
from trainer.contract.manifest import CheckpointManifest, StoredFile
from trainer.contract.replay import FP32_TOLERANCE, Replay, ReplaySegment
from trainer.contract.run import DataKeys, DatasetSource, EndClass, ProcessLayout, RunConfig
from trainer.resilience.assignment import Assignment

WEIGHT = "model/blocks.0.mlp.down.weight"


@dataclass(frozen=True)
class Trained:
    """A finished job: what the platform knows, and the objects in its store."""

    run: RunConfig
    keys: DataKeys
    objects: dict[str, bytes]
    checkpoints: list[CheckpointManifest]

    def with_checkpoint(self, number: int, manifest: CheckpointManifest, **objects: bytes) -> "Trained":
        """The same job, but with another record of a checkpoint, signed with the job's key."""
        signed = authenticate(manifest, Encryptor(self.keys.job))
        checkpoints = [signed if place == number else each for place, each in enumerate(self.checkpoints)]
        return replace(self, checkpoints=checkpoints, objects={**self.objects, **objects})


def train(work: Path, *, processes: int = 1, text: str | None = None, **changes: Any) -> Trained:
    run, keys, objects = platform_run(tiny_training(**changes), processes=processes)
    if text is not None:
        (part,) = run.dataset.raw[0].parts
        objects[part.key], other = Encryptor(keys.dataset).encrypt(text.encode(), part.key)
        file = StoredFile(path="tiny.txt", parts=[other])
        run = run.model_copy(update={"dataset": run.dataset.model_copy(update={"raw": [file]})})
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, work).run() is EndClass.COMPLETED, api.ends
        found = [CheckpointManifest.model_validate(each) for each in api.checkpoints]
        return Trained(run, keys, dict(api.objects), found)


def replayed(
    trained: Trained,
    work: Path,
    *,
    processes: int | None = None,
    tolerance: float = FP32_TOLERANCE,
    dataset: DatasetSource | None = None,
    is_same_accelerator: bool = True,
    **changes: Any,
) -> list[dict[str, Any]]:
    """The results that another job registers, which replays from the first step to each checkpoint."""
    starts = [None, *trained.checkpoints]
    segments = [
        ReplaySegment(number=number, start=starts[number], end=end) for number, end in enumerate(trained.checkpoints)
    ]
    run = trained.run.model_copy(
        update={
            "job_id": "job_2", "attempt_id": "att_2", "prefix": "teams/t/jobs/job_2/",
            "training": tiny_training(**changes),
            "layout": ProcessLayout(processes_per_node=processes or trained.run.layout.processes_per_node),
            "dataset": dataset or trained.run.dataset,
            "replay": Replay(
                job_id="job_1", segments=segments, is_same_accelerator=is_same_accelerator, tolerance=tolerance
            ),
        }
    )  # fmt: skip
    keys = trained.keys.model_copy(update={"job": new_keyset(), "replayed": trained.keys.job})
    with AgentApi(run, keys, dict(trained.objects)) as api:
        assert supervisor_for(api, work).run() is EndClass.COMPLETED, api.ends
        assert (api.checkpoints, api.models) == ([], []), "a replay stores nothing"
        return api.replays


def verdicts(results: list[dict[str, Any]]) -> list[str]:
    return [each["verdict"] for each in results]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("honest"))


def test_an_honest_run_is_equal_bit_for_bit(honest: Trained, tmp_path: Path) -> None:
    results = replayed(honest, tmp_path)
    assert [each.step for each in honest.checkpoints] == [10, 20]
    assert verdicts(results) == ["equal", "equal"], results
    for each in results:
        assert each["is_exact"] and each["differing"] == 0 and each["because"] == ""
        assert each["tensors"] > 20, "parameters and the state of the optimizer"


@pytest.mark.slow
def test_a_run_on_two_sharded_processes_is_equal_bit_for_bit(tmp_path: Path) -> None:
    sharded = {"parallelism": {"zero": 3}}
    trained = train(tmp_path / "run", processes=2, **sharded)
    results = replayed(trained, tmp_path / "replay", **sharded)
    assert verdicts(results) == ["equal", "equal"], results


@pytest.mark.slow
def test_another_number_of_processes_is_compared_within_the_tolerance(honest: Trained, tmp_path: Path) -> None:
    results = replayed(honest, tmp_path, processes=2)
    assert verdicts(results) == ["within_tolerance"] * 2, results
    assert not results[0]["is_exact"] and "was computed on the mesh" in results[0]["because"]
    assert 0 < max(each["relative"] for each in results[1]["differences"]) < FP32_TOLERANCE


def work_that_skips_a_batch(assignment: Assignment) -> None:
    """A worker that leaves out the data of the step after 12 steps; stands in for `run_worker`."""
    from trainer.data import loader

    honest = loader.first_sequence
    loader.first_sequence = lambda step, *rest: honest(step + (step >= 12), *rest)
    run_worker(assignment)


def work_that_edits_a_weight(assignment: Assignment) -> None:
    """A worker that changes one weight while it trains; stands in for `run_worker`."""
    from trainer.training import loop

    honest = loop.compute_step

    def compute_step(state: Any, monitor: Any, profiler: Any, step: int, *rest: Any) -> torch.Tensor:
        if step == 15:
            weight = state.model.weights.trainable[WEIGHT.removeprefix("model/")]
            weight.data[0, 0] += 1e-3
        return honest(state, monitor, profiler, step, *rest)

    loop.compute_step = compute_step
    run_worker(assignment)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "cheat", [work_that_skips_a_batch, pytest.param(work_that_edits_a_weight, marks=pytest.mark.slow)]
)
def test_a_cheat_during_training_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheat: Callable[[Assignment], None], processes: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(worker_group, "run_worker", cheat)
        trained = train(tmp_path / "run")
    results = replayed(trained, tmp_path / "replay", processes=processes)
    assert verdicts(results) == ["equal" if processes == 1 else "within_tolerance", "differs"], results
    assert results[1]["differing"] > 0 and results[1]["differences"][0]["largest"] > 0


def edited(trained: Trained, number: int, tensor: str, change: Callable[[torch.Tensor], None]) -> Trained:
    """The job with a stored tensor changed by someone who has its key."""
    encryptor, manifest = Encryptor(trained.keys.job), trained.checkpoints[number]
    (file,) = [each for each in manifest.files if each.path == "rank0"]
    (part,) = file.parts
    content = bytearray(encryptor.decrypt(trained.objects[part.key], part))
    view = load(bytes(content))[tensor]
    before = view.numpy().tobytes()
    assert content.count(before) == 1, "its place is known"
    change(view)
    place = content.index(before)
    content[place : place + len(before)] = view.numpy().tobytes()
    ciphertext, other = encryptor.encrypt(bytes(content), part.key)
    files = [each if each is not file else file.model_copy(update={"parts": [other]}) for each in manifest.files]
    return trained.with_checkpoint(number, manifest.model_copy(update={"files": files}), **{part.key: ciphertext})


def add_to_first(amount: float) -> Callable[[torch.Tensor], None]:
    def change(tensor: torch.Tensor) -> None:
        tensor.view(-1)[0] += amount

    return change


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "exp_avg", "exp_avg_sq"])
def test_an_edited_tensor_is_found_and_named(honest: Trained, tmp_path: Path, kind: str) -> None:
    tensor = WEIGHT.replace("model/", f"{kind}/")
    results = replayed(edited(honest, 1, tensor, add_to_first(1e-3)), tmp_path)
    assert verdicts(results) == ["equal", "differs"]
    assert results[1]["differing"] == 1
    (difference,) = results[1]["differences"]
    assert difference["name"] == tensor and difference["largest"] == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.slow
def test_an_edit_of_the_checkpoint_in_between_shows_in_both_segments(honest: Trained, tmp_path: Path) -> None:
    results = replayed(edited(honest, 0, WEIGHT, add_to_first(1e-3)), tmp_path)
    assert verdicts(results) == ["differs", "differs"]
    assert results[0]["differing"] == 1 < results[1]["differing"]


@pytest.mark.slow
def test_a_weight_that_is_not_finite_is_found(honest: Trained, tmp_path: Path) -> None:
    results = replayed(edited(honest, 1, WEIGHT, add_to_first(float("nan"))), tmp_path)
    assert verdicts(results) == ["equal", "differs"]
    assert results[1]["differences"] == [{"name": WEIGHT, "largest": None, "relative": None}]


@pytest.mark.slow
def test_another_seed_is_found(tmp_path: Path) -> None:
    trained = train(tmp_path / "run", seed=6)
    assert verdicts(replayed(trained, tmp_path / "replay", seed=5)) == ["differs", "differs"]


@pytest.mark.slow
def test_other_data_is_found(honest: Trained, tmp_path: Path) -> None:
    other = train(tmp_path / "run", text=tiny_text().replace("gold", "lead"))
    key = other.run.dataset.raw[0].parts[0].key
    (part,) = honest.run.dataset.raw[0].parts
    content = Encryptor(honest.keys.dataset).decrypt(honest.objects[key], part)
    ciphertext, part = Encryptor(other.keys.dataset).encrypt(content, key)
    declared = other.run.dataset.model_copy(update={"raw": [StoredFile(path="tiny.txt", parts=[part])]})
    other = replace(other, objects={**other.objects, key: ciphertext})
    results = replayed(other, tmp_path / "replay", dataset=declared)
    assert verdicts(results) == ["differs", "differs"]
    assert "was trained on data with the fingerprint" in results[0]["because"]
    fingerprint = honest.checkpoints[0].dataset_fingerprint
    for number, manifest in enumerate(other.checkpoints):
        other = other.with_checkpoint(number, manifest.model_copy(update={"dataset_fingerprint": fingerprint}))
    results = replayed(other, tmp_path / "forged", dataset=declared)
    assert verdicts(results) == ["differs", "differs"]
    assert results[0]["differing"] > 20 and results[1]["differing"] > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forged", "says"),
    [
        ({"tokens_seen": 10_000}, "records 10000 tokens; the spec has 5120 by then"),
        ({"data_position": 10**9}, "records that the data continues at step 1000000000"),
        ({"step": 10**9}, "records more steps than the 20 of the spec"),
    ],
)
def test_a_record_that_is_not_of_the_spec_is_found(
    honest: Trained, tmp_path: Path, forged: dict[str, int], says: str
) -> None:
    manifest = honest.checkpoints[1].model_copy(update=forged)
    results = replayed(honest.with_checkpoint(1, manifest), tmp_path)
    assert verdicts(results) == ["equal", "differs"]
    assert results[1]["because"].endswith(says)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_cannot_be_compared(honest: Trained, tmp_path: Path, processes: int) -> None:
    (part,) = next(each for each in honest.checkpoints[1].files if each.path == "rank0").parts
    damaged = bytearray(honest.objects[part.key])
    damaged[len(damaged) // 2] ^= 1
    trained = replace(honest, objects={**honest.objects, part.key: bytes(damaged)})
    results = replayed(trained, tmp_path, processes=processes)
    assert verdicts(results)[1] == "not_comparable"
    assert "the checkpoint of step 20 is damaged" in results[1]["because"]


@pytest.mark.slow
def test_a_record_that_the_job_did_not_sign_cannot_be_compared(honest: Trained, tmp_path: Path) -> None:
    forged = honest.checkpoints[1].model_copy(update={"tokens_seen": 10_000})
    results = replayed(replace(honest, checkpoints=[honest.checkpoints[0], forged]), tmp_path)
    assert verdicts(results) == ["equal", "not_comparable"]
    assert "was changed, or is another job's" in results[1]["because"]


@pytest.mark.slow
def test_another_kind_of_accelerator_is_not_expected_to_be_equal(honest: Trained, tmp_path: Path) -> None:
    edit = edited(honest, 1, WEIGHT, add_to_first(1e-9))
    results = replayed(edit, tmp_path, is_same_accelerator=False)
    assert verdicts(results) == ["equal", "within_tolerance"]
    assert results[1]["because"] == "the job ran on another kind of accelerator"
    assert not results[0]["is_exact"]


def test_a_trainer_that_knows_no_replays_gets_nothing_to_train(honest: Trained) -> None:
    replay = Replay(job_id="job_1", segments=[], is_same_accelerator=True, tolerance=0.1)
    run = honest.run.model_copy(update={"replay": replay})
    sent = run.model_dump(mode="json")
    assert sent["training"] is None and "evaluated" not in sent
    assert RunConfig.model_validate(sent) == run and not run.trains
