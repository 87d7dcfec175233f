"""Whole tiny runs whose replicas exchange compressed gradients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.equality import Case, take_step
from tests.trainer.ranks import RankPool
from tests.trainer.runs import FinishedRun, run_alone, stop, tiny_training
from trainer.contract.run import EndClass

LOSS = "train/loss"
POWERSGD = {"kind": "powersgd", "rank": 2, "start_step": 3}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("plain") / "run", tiny_training(), processes=2)


@pytest.mark.parametrize(("kind", "tolerance"), [("int8", 0.01), ("fp8", 0.02), ("powersgd", 0.1)])
def test_the_loss_follows_the_uncompressed_run_and_fewer_bytes_are_reported(
    plain: FinishedRun, tmp_path: Path, kind: str, tolerance: float
) -> None:
    compression = POWERSGD if kind == "powersgd" else {"kind": kind}
    run = run_alone(tmp_path / "run", tiny_training(parallelism={"compression": compression}), processes=2)
    assert run.end_class is EndClass.COMPLETED
    assert run.series(LOSS) == pytest.approx(plain.series(LOSS), rel=tolerance)
    assert run.series(LOSS) != plain.series(LOSS)
    sent, whole = run.series("network/gradient_bytes"), run.series("network/uncompressed_gradient_bytes")
    assert sorted(sent) == sorted(run.series(LOSS))
    assert whole[20] / sent[20] > 3.8
    assert (sent[3] == whole[3]) == (kind == "powersgd")


@pytest.mark.parametrize("compression", [{"kind": "int8"}, POWERSGD], ids=lambda compression: compression["kind"])
def test_a_resume_goes_on_with_what_was_still_owed(tmp_path: Path, compression: dict[str, Any]) -> None:
    training = tiny_training(steps=60, parallelism={"compression": compression})
    undisturbed = run_alone(tmp_path / "undisturbed", training, processes=2)
    output = tmp_path / "run"
    assert run_alone(output, training, processes=2, at_first_checkpoint=stop).end_class is EndClass.STOPPED
    assert run_alone(output, training, processes=2).series(LOSS) == undisturbed.series(LOSS)


def test_only_sums_between_groups_of_shards_are_compressed(plain: FinishedRun, tmp_path: Path) -> None:
    """Two replicas of two shards each; and on another mesh the same run continues without its compression errors."""
    spec = {"zero": 3, "replicate": 2, "compression": {"kind": "int8"}}
    training, output = tiny_training(parallelism=spec), tmp_path / "run"
    stopped = run_alone(output, training, processes=4, every_steps=5, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED
    run = run_alone(output, training, processes=2)
    assert run.end_class is EndClass.COMPLETED
    assert run.series(LOSS) == pytest.approx(plain.series(LOSS), rel=0.01)
    sent, whole = run.series("network/gradient_bytes"), run.series("network/uncompressed_gradient_bytes")
    # A rank of four has half of the parameters, and no share for a compressed sum within its replica.
    assert whole[1] == pytest.approx(whole[20] / 2, rel=0.05)
    assert whole[1] / sent[1] > 3.5


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


@pytest.mark.parametrize(
    ("model", "parallelism"),
    [
        ("tied", {"pipeline": 2, "zero": 0}),
        ("dense", {"tensor": 2, "zero": 0}),
        ("dense", {"context": 2, "zero": 1, "replicate": 2}),
        ("moe", {"expert": 2, "zero": 0}),
        ("moe", {"expert": 2, "zero": 3, "replicate": 2}),
    ],
    ids=str,
)
def test_gradients_are_near_those_of_one_rank_on_any_mesh(
    ranks: RankPool, model: str, parallelism: dict[str, Any]
) -> None:
    (alone,) = ranks.run(1, take_step, Case(model, 1, {}))
    spread = ranks.run(4, take_step, Case(model, 4, {**parallelism, "compression": {"kind": "int8"}}))[0]
    assert spread.loss == pytest.approx(alone.loss, rel=1e-6)
    assert spread.norm == pytest.approx(alone.norm, rel=0.01)
    off = {name: np.linalg.norm(each - alone.gradients[name]) for name, each in spread.gradients.items()}
    assert all(off[name] < 0.03 * np.linalg.norm(each) for name, each in alone.gradients.items())
    assert max(off[name] / np.linalg.norm(each) for name, each in alone.gradients.items()) > 1e-4
