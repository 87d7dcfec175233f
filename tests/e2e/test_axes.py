"""A mixture of experts on five axes, eight processes on this machine, from the spec to the model."""

from pathlib import Path

import pytest

from tests.trainer.runs import FIVE_AXES, MIXTURE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def test_five_axes_train_through_the_platform(stack, tmp_path: Path) -> None:
    fields = {"model": {"shape": MIXTURE}, "tokens_per_step": 512, "sequence_length": 32}
    alone = stack.submit(tmp_path, processes=1, **fields)
    spread = stack.submit(tmp_path, processes=8, parallelism=FIVE_AXES, **fields)
    curves = {}
    for job_id in (alone, spread):
        job = stack.wait_for_end(job_id)
        assert job["status"] == "succeeded", job["reason"]
        curves[job_id] = stack.curve(job_id, "train/loss")
    assert len(curves[spread]["steps"]) == 20
    assert curves[spread]["values"] == pytest.approx(curves[alone]["values"], rel=1e-4)


def test_a_mesh_that_cannot_be_is_refused_with_the_reason(stack, tmp_path: Path) -> None:
    result = stack.athanor("submit", str(stack.spec(tmp_path)), "--set", "training.parallelism.tensor=3")
    assert result.returncode == 2
    assert "tensor 3" in result.stderr
    assert "does not divide" in result.stderr
