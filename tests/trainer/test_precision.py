"""Lower precision and less memory: the same run within what rounding allows, and bitwise where nothing is rounded."""

from pathlib import Path

import pytest

from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from trainer.contract.launch_plan import is_recomputed
from trainer.contract.run import EndClass

LOSS = "train/loss"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("plain") / "run", tiny_training(), processes=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_checkpointing": "full"},
        {"activation_checkpointing": "selective"},
        {"activation_checkpointing": "full", "recompute_layers": 1},
    ],
    ids=["all layers", "but for products and attention", "one layer of two"],
)
def test_what_is_computed_again_is_the_same(plain: FinishedRun, tmp_path: Path, changes: dict) -> None:
    again = run_alone(tmp_path / "run", tiny_training(**changes), processes=2)
    assert again.series(LOSS) == plain.series(LOSS)


@pytest.mark.parametrize(
    ("precision", "zero"), [("bf16", 0), ("bf16", 3), pytest.param("fp8", 0, marks=pytest.mark.slow), ("fp8", 3)]
)
def test_lower_precision_trains_to_about_the_same_loss(
    plain: FinishedRun, tmp_path: Path, precision: str, zero: int
) -> None:
    training = tiny_training(precision=precision, parallelism={"zero": zero})
    run = run_alone(tmp_path / "run", training, processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    assert run.series(LOSS)[20] == pytest.approx(plain.series(LOSS)[20], rel=2e-2)
    assert run.series(LOSS) != plain.series(LOSS)


@pytest.mark.parametrize("zero", [0, 3])
def test_gradients_may_be_summed_in_bf16(plain: FinishedRun, tmp_path: Path, zero: int) -> None:
    training = tiny_training(gradient_reduction="bf16", parallelism={"zero": zero})
    run = run_alone(tmp_path / "run", training, processes=2)
    assert run.series(LOSS) == pytest.approx(plain.series(LOSS), rel=5e-3)
    assert run.series(LOSS) != plain.series(LOSS)


def test_the_layers_that_are_computed_again_lie_evenly() -> None:
    assert [layer for layer in range(8) if is_recomputed(layer, 8, 2)] == [3, 7]
    assert [layer for layer in range(8) if is_recomputed(layer, 8, 3)] == [2, 5, 7]
    assert all(is_recomputed(layer, 8, None) for layer in range(8))


def test_layers_to_compute_again_need_a_policy() -> None:
    with pytest.raises(ValueError, match="recompute_layers needs activation_checkpointing"):
        tiny_training(recompute_layers=1)
