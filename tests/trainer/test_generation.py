"""What a model says is the same on every mesh, and that it has spoken changes nothing of what is trained."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.trainer.equality import LENGTH, MODELS, VOCABULARY, Case, Outcome, take_step
from tests.trainer.ranks import RankPool
from trainer.contract.models import ModelShape
from trainer.models.decoder import Decoder, initialise
from trainer.parallel.generation import generation_session
from trainer.parallel.mesh import Mesh
from trainer.parallel.parallelize import ParallelModel

PROMPTS = [[5, 17, 60], [1], [99, 3, 3, 42, 8, 70, 2]]
NUM_TOKENS = 9


def case(model: str, world: int, **parallelism: Any) -> Case:
    return Case(model, world, parallelism, packed=True)


CASES = [
    case("tied", 2, zero=3),
    case("dense", 2, tensor=2),
    case("dense", 2, context=2, zero=0),
    case("tied", 2, context=2, context_attention="ulysses", zero=3),
    case("moe", 2, zero=0, expert=2),
    case("deepseek", 2, tensor=2, tensor_overlap=True, zero=0),
    case("deepseek", 4, context=2, expert=2, zero=3),
    case("gemma2", 2, tensor=2),
    case("gpt-oss", 4, tensor=2, expert=2),
    case("llama4", 4, context=2, expert=2, zero=3),
    case("llama4", 4, tensor=2, pipeline=2, micro_batch_sequences=2),
    case("dense", 2, pipeline=2, micro_batch_sequences=2),
    case("tied", 4, pipeline=2, pipeline_schedule="zbv_zero_bubble", tensor=2, micro_batch_sequences=2),
    pytest.param(
        case("moe", 8, pipeline=2, context=2, tensor=2, expert=2, zero=3, micro_batch_sequences=2),
        marks=pytest.mark.slow,
    ),
]  # fmt: skip


DIVIDED = [
    case("tied", 2, zero=3),
    case("moe", 2, zero=0, expert=2),
    case("gpt-oss", 4, tensor=2, expert=2),
    case("dense", 4, pipeline=2, micro_batch_sequences=2),
]
"""With two data ranks."""


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(8) as pool:
        yield pool


def likeliest_of_one(model: str) -> list[list[int]]:
    """By one rank that computes every sequence as a whole."""
    decoder = Decoder(ModelShape.model_validate(MODELS[model]), VOCABULARY, LENGTH)
    decoder.zero_buffers()
    initialise(decoder, seed=3)
    found = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(NUM_TOKENS):
            with torch.no_grad():
                tokens.append(int(decoder(torch.tensor([tokens]))[0, -1].argmax()))
        found.append(tokens[len(prompt) :])
    return found


def speak_and_step(mesh: Mesh, case: Case, divides_rows: bool) -> tuple[list[list[int]], Outcome]:
    """On a rank."""
    found: list[list[int]] = []

    def speak(model: ParallelModel) -> None:
        sizes = model.weights.mesh.sizes
        prompts = PROMPTS * (sizes.data if divides_rows else 1)
        lengths = [len(prompt) for prompt in prompts]
        tokens = torch.tensor([prompt + [0] * (max(lengths) - len(prompt)) for prompt in prompts])
        max_tokens = max(lengths) + NUM_TOKENS

        def sample(logits: torch.Tensor) -> torch.Tensor:
            assert len(logits) == len(PROMPTS), "a rank computes its share alone"
            return logits.argmax(-1)

        with generation_session(model, max_tokens, sample, divides_rows=divides_rows) as generation:
            new = [generation.prefill(tokens, lengths)]
            while len(new) < NUM_TOKENS:
                new.append(generation.step(new[-1]))
        found.extend(torch.stack(new, 1).tolist())

    outcome = take_step(mesh, case, speak)
    return found, outcome


@pytest.mark.parametrize("case", DIVIDED, ids=str)
def test_data_ranks_divide_the_rows(pool: RankPool, case: Case) -> None:
    results = pool.run(case.world, speak_and_step, case, True)
    expected = likeliest_of_one(case.model)
    for found, _ in results:
        assert found == expected * 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mesh_says_what_one_rank_does_and_trains_as_if_it_had_not(pool: RankPool, case: Case) -> None:
    results = pool.run(case.world, speak_and_step, case, False)
    expected = likeliest_of_one(case.model)
    assert [found for found, _ in results] == [expected] * case.world
    silent, spoken = pool.run(case.world, take_step, case)[0], results[0][1]
    assert (spoken.loss, spoken.norm) == (silent.loss, silent.norm)
    assert {n: g.tobytes() for n, g in spoken.gradients.items()} == {
        n: g.tobytes() for n, g in silent.gradients.items()
    }
