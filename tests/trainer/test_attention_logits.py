"""The largest attention logit of each layer is that of the complete scores, on every mesh, without a compilation."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.equality import MODELS, Case, built, my_batches, step_batch
from tests.trainer.ranks import RankPool
from tests.trainer.runs import run_alone, tiny_training
from trainer.contract.run import EndClass
from trainer.data.packing import IGNORED
from trainer.models.attention import window_mask
from trainer.models.cache import override_attribute
from trainer.parallel import attention_logits
from trainer.parallel.attention_logits import largest_attention_logits
from trainer.parallel.mesh import Mesh

ALONE = Mesh(0, 1, 0, torch.device("cpu"))
NUM_LAYERS = 8


def naive(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, sinks_H: Any, found: list[float], layer: Any
) -> Tensor:
    """Attend as the layer does, and add the largest of all of its scores to `found`."""
    length = query.shape[2]
    seen = window_mask(length, layer.window or length, query.device) if mask is None else mask
    if mask is not None and layer.window is not None:
        seen = mask & window_mask(length, layer.window, query.device)
    keys = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = torch.einsum("bhqe,bhke->bhqk", query.double(), keys) / math.sqrt(query.shape[-1])
    if layer.cap is not None:
        scores = layer.cap * torch.tanh(scores / layer.cap)
    found.append(float(scores.masked_fill(~seen, -math.inf).max()))
    mixed: Tensor = layer.attend(query, key, value, mask, sinks_H=sinks_H)
    return mixed


def expected(case: Case) -> list[float]:
    """Return the largest logits of the complete model on one rank, by the masks that its attention gets."""
    model, _ = built(ALONE, Case(case.model, 1, {"micro_batch_sequences": 16}, case.packed).spec())
    found: dict[int, list[float]] = {number: [] for number in range(NUM_LAYERS)}
    with ExitStack() as overrides:
        for number, block in model.stages[0].blocks.items():
            original = block.attention.attend
            layer = SimpleNamespace(attend=original, window=block.attention.window, cap=block.attention.cap)
            replaced = partial(naive, found=found[int(number)], layer=layer)
            overrides.enter_context(override_attribute(block.attention, "attend", replaced))
        model.losses([step_batch(case.packed)])
    return [max(values) for values in found.values()]


def measured(mesh: Mesh, case: Case) -> list[float]:
    """On a rank: the largest logits over all micro-batches of the step."""
    model, part = built(mesh, case.spec())
    batches = my_batches(step_batch(case.packed), part)
    by_batch = [largest_attention_logits(model, batch, NUM_LAYERS) for batch in batches]
    return [max(values) for values in zip(*by_batch, strict=True)]


@pytest.mark.parametrize(
    ("model", "packed"),
    [
        ("tied", False), ("mistral", False), ("deepseek", True), ("gemma2-window", True), ("llama4", True),
        ("gpt-oss", True),
    ],
)  # fmt: skip
def test_it_is_the_largest_of_all_scores(model: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over blocks of few queries, whatever kind of attention."""
    case = Case(model, 1, {"micro_batch_sequences": 16}, packed)
    monkeypatch.setattr(attention_logits, "BLOCK_BYTES", 4 * 16 * 8 * 32 * 5)
    found = measured(ALONE, case)
    assert found == pytest.approx(expected(case), rel=1e-5)
    if "attn_logit_softcapping" in MODELS[model]:
        assert all(value <= MODELS[model]["attn_logit_softcapping"] for value in found)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


@pytest.mark.parametrize(
    "case",
    [
        Case("dense", 4, {"tensor": 2, "pipeline": 2, "micro_batch_sequences": 2}),
        Case("mistral", 4, {"context": 4}, packed=True),
        Case("gemma2-window", 4, {"context": 2, "tensor": 2, "context_attention": "ulysses"}, packed=True),
        Case("llama4", 4, {"context": 2, "expert": 2, "zero": 3}, packed=True),
    ],
    ids=str,
)
def test_it_is_the_same_on_every_mesh(pool: RankPool, case: Case) -> None:
    first, *others = pool.run(4, measured, case)
    assert all(other == first for other in others)
    assert first == pytest.approx(expected(case), rel=1e-5)


def test_padding_does_not_count_and_what_is_not_finite_is_reported() -> None:
    case = Case("dense", 1, {"micro_batch_sequences": 16})
    model, part = built(ALONE, case.spec())
    (batch,) = my_batches(step_batch(packed=False), part)
    all_rows = largest_attention_logits(model, batch, NUM_LAYERS)
    half = batch.targets_BS.clone()
    half[8:] = IGNORED
    first_rows = batch.each(lambda tensor: tensor[:8])
    padded = type(batch)(batch.tokens_BS, half)
    assert largest_attention_logits(model, padded, NUM_LAYERS) == largest_attention_logits(
        model, first_rows, NUM_LAYERS
    )
    assert largest_attention_logits(model, padded, NUM_LAYERS) != all_rows
    with torch.no_grad():
        model.stages[0].blocks["5"].attention.query.weight[0, 0] = math.nan
    found = largest_attention_logits(model, batch, NUM_LAYERS)
    assert found[:5] == all_rows[:5]
    assert all(math.isnan(value) for value in found[5:])


def test_compiled_blocks_are_not_compiled_again() -> None:
    case = Case("tied", 1, {"micro_batch_sequences": 16})
    model, part = built(ALONE, case.spec())
    (batch,) = my_batches(step_batch(packed=False), part)
    expected_logits = largest_attention_logits(model, batch, NUM_LAYERS)
    model.stages[0].blocks["0"].compile(backend="eager")
    model.forward_backward([batch], 1.0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert largest_attention_logits(model, batch, NUM_LAYERS) == expected_logits
        model.forward_backward([batch], 1.0)


def test_a_run_reports_the_logits_when_they_are_due(tmp_path: Path) -> None:
    training = tiny_training(steps=30, optimizer={"gradient_watch": {"logits_every_steps": 15}})
    run = run_alone(tmp_path / "run", training)
    assert run.end_class is EndClass.COMPLETED, run.end
    names = {name for point in run.points() for name in point["values"] if name.startswith("layers/")}
    assert names == {f"layers/blocks/{number}/attention/largest_logit" for number in range(2)}
    for name in names:
        assert list(run.series(name)) == [15, 30]
        assert all(math.isfinite(value) for value in run.series(name).values())
