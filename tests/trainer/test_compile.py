"""What `compile` compiles: whole blocks, recomputed or not; what it cannot is reported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _dynamo as dynamo

from tests.trainer.equality import MODELS
from tests.trainer.runs import MIXTURE, FinishedRun, run_alone, tiny_training
from trainer.models.decoder import Decoder
from trainer.training.activation_checkpointing import apply_activation_checkpointing

LOSS = "train/loss"
SHORT: dict[str, Any] = {"steps": 3, "schedule": {"warmup_steps": 1}, "evaluation": {"every_steps": 3, "sequences": 4}}
NAMED = ["gpt-oss", "gemma2", "llama4"]


@pytest.mark.parametrize("shape", [MIXTURE, *(MODELS[name] for name in NAMED)], ids=["mixture", *NAMED])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_each_kind_of_block_is_one_graph_with_the_same_gradients(recompute: str, shape: dict[str, Any]) -> None:
    training = tiny_training(model={"shape": shape}, activation_checkpointing=recompute)
    found = []
    for backend in (None, "aot_eager"):
        dynamo.reset()
        dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = Decoder(training.model.resolve(), 300, 32)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        for block in model.blocks.values():
            block.to(torch.bfloat16)
        apply_activation_checkpointing(model, training)
        if backend is not None:
            for block in model.blocks.values():
                block.compile(backend=backend)
        x_BSD = torch.randn(2, 32, 32, dtype=torch.bfloat16, requires_grad=True)
        positions, y_BSD = model.layer_positions(None, 32, x_BSD), x_BSD
        for number, block in model.blocks.items():
            y_BSD = block(y_BSD, positions(int(number)), None)
        y_BSD.float().square().sum().backward()
        found.append([y_BSD, x_BSD.grad, *(parameter.grad for parameter in model.blocks.parameters())])
    kinds = {
        (block.attention.window, model.shape.has_rope(int(number)), type(block.mlp))
        for number, block in model.blocks.items()
    }
    assert dynamo.utils.counters["stats"]["unique_graphs"] == len(kinds)
    assert not dynamo.utils.counters["graph_break"]
    for eager, compiled in zip(*found, strict=True):
        assert torch.equal(eager, compiled)


def compiled_run(folder: Path, **fields: Any) -> tuple[FinishedRun, FinishedRun]:
    """Return a run without and one with compiled blocks, of two processes."""
    plain = run_alone(folder / "plain", tiny_training(**SHORT, **fields), processes=2)
    compiled = run_alone(folder / "compiled", tiny_training(compile=True, **SHORT, **fields), processes=2)
    for run in (plain, compiled):
        assert run.end["end_class"] == "completed", run.end["message"]
    assert compiled.series(LOSS) == pytest.approx(plain.series(LOSS), rel=1e-5)
    assert not plain.events("compile.partial")
    return plain, compiled


@pytest.mark.slow
def test_blocks_that_exchange_heads_are_compiled(tmp_path: Path) -> None:
    _, compiled = compiled_run(tmp_path, parallelism={"context": 2, "context_attention": "ulysses"})
    assert not compiled.events("compile.partial")


def test_blocks_that_cannot_be_compiled_are_reported_with_the_remedy(tmp_path: Path) -> None:
    parallelism = {"context": 2, "context_attention": "ring"}
    _, compiled = compiled_run(tmp_path, parallelism=parallelism, activation_checkpointing="full")
    (event,) = compiled.events("compile.partial")
    assert (event["blocks"], event["of"]) == (2, 2)
    assert "set parallelism.context_attention to ulysses" in event["because"]


@pytest.mark.parametrize(
    ("fields", "on_gpu", "compiles"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"compile": True}, False, True),
        ({"compile": False}, True, False),
        ({"parallelism": {"pipeline": 2, "pipeline_schedule": "zbv_zero_bubble"}}, True, False),
    ],
)
def test_blocks_are_compiled_on_gpus_unless_the_spec_says_otherwise(
    fields: dict[str, Any], on_gpu: bool, compiles: bool
) -> None:
    assert tiny_training(**fields).with_compile(on_gpu=on_gpu).compile is compiles


def test_what_fails_to_compile_runs_as_it_is_where_nobody_asked_for_it() -> None:
    from trainer.training.device import tolerate_failed_compilation

    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    with dynamo.config.patch(suppress_errors=False):  # monkeypatch would leave torch without the setting
        tolerate_failed_compilation()
        dynamo.reset()
        assert torch.compile(lambda x: x + 1, backend=broken)(torch.ones(2)).tolist() == [2.0, 2.0]
