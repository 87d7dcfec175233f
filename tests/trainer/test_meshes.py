"""Whole runs on meshes of several axes: they train, stop, go on elsewhere, and export what one process would."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.trainer.runs import FIVE_AXES, MIXTURE, FinishedRun, run_alone, stop, tiny_training
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec

LOSS = "train/loss"


def moe_training(**changes: Any) -> TrainingSpec:
    return tiny_training(model={"shape": MIXTURE}, tokens_per_step=512, **changes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("alone") / "run", moe_training())


@pytest.mark.slow
def test_five_axes_train_and_export_what_one_process_does(alone: FinishedRun, tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", moe_training(parallelism=FIVE_AXES), processes=8)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    assert run.series(LOSS) == pytest.approx(alone.series(LOSS), rel=1e-4)
    assert run.series("evaluation/loss") == pytest.approx(alone.series("evaluation/loss"), rel=1e-4)
    expected = load_file(alone.output / "model" / "model.safetensors")
    files = sorted((run.output / "model").glob("*.safetensors"))
    assert len(files) == 2  # each pipeline stage writes its own
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert (tensor - expected[name]).abs().max() <= 2e-3, name


@pytest.mark.parametrize(
    ("before", "ranks_before", "after", "ranks_after"),
    [
        pytest.param(
            FIVE_AXES, 8, {"zero": 0, "expert": 2}, 2, id="from five axes to replicas", marks=pytest.mark.slow
        ),
        pytest.param(
            {"zero": 3, "replicate": 2},
            4,
            {"pipeline": 2, "pipeline_schedule": "zbv_zero_bubble", "tensor": 2},
            4,
            id="from hierarchical shards to a pipeline",
        ),
    ],
)
def test_a_checkpoint_is_read_on_another_mesh(
    tmp_path: Path, before: dict[str, Any], ranks_before: int, after: dict[str, Any], ranks_after: int
) -> None:
    undisturbed = run_alone(tmp_path / "undisturbed", moe_training(steps=40))
    output = tmp_path / "run"
    first = moe_training(steps=40, parallelism=before)
    stopped = run_alone(output, first, processes=ranks_before, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED, stopped.end["message"]
    resumed = run_alone(output, moe_training(steps=40, parallelism=after), processes=ranks_after)
    assert resumed.end_class is EndClass.COMPLETED, resumed.end["message"]
    assert resumed.series(LOSS) == pytest.approx(undisturbed.series(LOSS), rel=1e-3)


def test_a_mesh_that_cannot_be_is_a_bad_spec(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", moe_training(parallelism={"tensor": 3}), processes=3)
    assert run.end_class is EndClass.BAD_SPEC
    assert "training.parallelism.tensor: tensor 3 does not divide the model's num_heads 4" in run.end["message"]


@pytest.mark.slow
def test_compiled_blocks_compute_the_same_on_a_mesh(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"steps": 4, "schedule": {"warmup_steps": 1}, "parallelism": {"tensor": 2}}
    plain = run_alone(tmp_path / "plain", moe_training(**fields), processes=2)
    compiled = run_alone(tmp_path / "compiled", moe_training(compile=True, **fields), processes=2)
    assert compiled.end_class is EndClass.COMPLETED, compiled.end["message"]
    assert compiled.series(LOSS) == pytest.approx(plain.series(LOSS), rel=1e-5)


def test_recorded_blocks_compute_the_same_and_say_so_where_nothing_is_recorded(tmp_path: Path) -> None:
    """On a CPU nothing is: what is different here is how compiled blocks and gradients are set up for it."""
    fields: dict[str, Any] = {
        "steps": 3,
        "schedule": {"warmup_steps": 1},
        "parallelism": {"micro_batch_sequences": 4},
        "evaluation": {"sequences": 4},  # of one shape with what is trained: one compilation
    }
    plain = run_alone(tmp_path / "plain", tiny_training(**fields))
    recorded = run_alone(tmp_path / "recorded", tiny_training(compile=True, cuda_graphs=True, **fields))
    assert recorded.end_class is EndClass.COMPLETED, recorded.end["message"]
    assert recorded.series(LOSS) == pytest.approx(plain.series(LOSS), rel=1e-5)
    (event,) = recorded.events("cuda_graphs.unused")
    assert event == {"because": "the device of this run is cpu, not cuda"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compile": False}, "compile false"),
        ({"parallelism": {"zero": 3}}, "take zero 0"),
        ({"parallelism": {"tensor": 2}}, "tensor or context parallelism"),
        ({"batch_ramp": {"start_tokens_per_step": 64, "steps": 5}}, "batch_ramp"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    training = tiny_training(**{"compile": True, "cuda_graphs": True, **changes})
    (problem,) = plan_mesh(training, 300, 2)
    assert (problem.field, words in problem.message) == ("cuda_graphs", True)
