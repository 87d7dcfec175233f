"""One step on any mesh, and the same step on one rank: loss, every gradient, and the norm they are clipped by."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.trainer.ranks import RankPool
from trainer.contract.launch_plan import micro_batch_size, plan_mesh
from trainer.contract.training import TrainingSpec
from trainer.data.batch import IGNORED, MicroBatch
from trainer.data.loader import RankShare
from trainer.data.sampler import split_range
from trainer.optim.step import ShardOptimizer
from trainer.parallel import data
from trainer.parallel.full_tensors import gather_full_tensors
from trainer.parallel.mesh import Mesh, all_reduce_world
from trainer.parallel.parallelize import ParallelModel, parallelize_model
from trainer.reporting.layers import Layers, layer_of

VOCABULARY = 101  # no axis divides it
SEQUENCES, LENGTH = 16, 32
LOSS_TOLERANCE = 1e-6
GRADIENT_TOLERANCE = 2e-5
"""Of a gradient's largest element: fp32 sums in another order."""

DENSE = {
    "hidden_size": 32, "num_layers": 8, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 64, "head_dim": 8,
}  # fmt: skip
GEMMA2 = {
    **DENSE, "norm_position": "both", "offset_norms": True, "activation": "gelu_tanh", "scale_embeddings": True,
    "scale_window_rope": True, "attn_logit_softcapping": 0.1, "final_logit_softcapping": 0.3,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "tied": {**DENSE, "tie_embeddings": True, "qk_norm": True},
    "moe": {
        **DENSE,
        "moe": {"num_experts": 8, "experts_per_token": 2, "expert_size": 16, "shared_experts": 1,
                "first_dense_layers": 1, "scoring": "sigmoid", "balance_rate": 0.01},
    },
    "qwen2": {**DENSE, "attention_bias": True},
    "glm": {
        **DENSE, "attention_bias": True, "qk_norm": True, "rotary_fraction": 0.5,
        "moe": {"num_experts": 4, "experts_per_token": 2, "expert_size": 16, "shared_experts": 1, "scoring": "sigmoid"},
    },
    "mistral": {**DENSE, "sliding_window": 9},
    "deepseek": {
        **DENSE, "num_kv_heads": 8, "head_dim": None,
        "mla": {"q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10},
        "moe": {"num_experts": 8, "experts_per_token": 3, "expert_size": 16, "num_groups": 4, "groups_per_token": 2,
                "shared_experts": 1, "first_dense_layers": 1, "scoring": "sigmoid", "balance_rate": 0.01},
    },
    "gemma2": GEMMA2,
    "gemma2-window": {**GEMMA2, "sliding_window": 13, "full_attention_every": 2},
    "llama4": {
        **DENSE, "interleaved_rope": True, "l2_qk_norm": True, "attention_chunk_size": 5, "full_attention_every": 4,
        "no_rope_every": 4, "temperature_tuning": {"floor_scale": 3, "attn_scale": 0.5},
        "moe": {"num_experts": 4, "experts_per_token": 2, "expert_size": 16, "shared_experts": 1, "scoring": "sigmoid",
                "normalise_weights": False, "weigh_inputs": True, "layer_interval": 2},
    },
    "gpt-oss": {
        **DENSE, "attention_bias": True, "attention_output_bias": True, "attention_sinks": True,
        "scale_window_rope": True, "sliding_window": 9, "full_attention_every": 2, "intermediate_size": 16,
        "moe": {"num_experts": 4, "experts_per_token": 2, "expert_size": 16, "biases": True, "swiglu_limit": 0.1},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A mesh for one of MODELS; `packed`: several documents a row, and rows that end in padding."""

    model: str
    world: int
    parallelism: dict[str, Any]
    packed: bool = False
    training: dict[str, Any] = field(default_factory=dict)

    def spec(self) -> TrainingSpec:
        return TrainingSpec.model_validate(
            {
                "model": {"shape": MODELS[self.model]},
                "data": {"source": "dataset:none"},
                "tokenizer": {"vocab_size": 300},
                "steps": 4,
                "schedule": {"warmup_steps": 0},
                "tokens_per_step": SEQUENCES * LENGTH,
                "sequence_length": LENGTH,
                "seed": 3,
                "parallelism": self.parallelism,
                **self.training,
            }
        )

    def __str__(self) -> str:
        axes = " ".join(f"{name}={value}" for name, value in self.parallelism.items())
        extra = " packed" if self.packed else ""
        more = " ".join(f"{name}={value}" for name, value in self.training.items())
        return f"{self.model} on {self.world}: {axes or 'auto'}{extra} {more}".rstrip()


@dataclass
class Outcome:
    """Of a step: mean loss, gradient norm, (on the first rank) whole gradients, the squared norm of each layer, and
    what the sequences of each micro-batch contribute to the loss."""

    loss: float
    norm: float
    gradients: dict[str, np.ndarray]
    layer_squares: dict[str, float]
    batch_losses: dict[tuple[int, int], float]


def step_batch(packed: bool) -> MicroBatch:
    """All sequences of a step, the same everywhere."""
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1), generator=generator)
    if not packed:
        return MicroBatch(tokens[:, :-1], tokens[:, 1:])
    documents, positions = torch.zeros(SEQUENCES, LENGTH, dtype=torch.int32), torch.zeros(SEQUENCES, LENGTH).long()
    targets = tokens[:, 1:].clone()
    for row in range(SEQUENCES):
        cuts = sorted({0, *torch.randint(1, LENGTH, (2,), generator=generator).tolist(), LENGTH})
        for number, (low, high) in enumerate(zip(cuts, cuts[1:], strict=False)):
            documents[row, low:high] = number
            positions[row, low:high] = torch.arange(high - low)
            targets[row, high - 1] = IGNORED
        if row % 3 == 0:
            targets[row, LENGTH - 5 :] = IGNORED
    return MicroBatch(tokens[:, :-1], targets, documents, positions)


def built(mesh: Mesh, training: TrainingSpec, *, by_block: bool = False) -> tuple[ParallelModel, RankShare]:
    """`by_block`: sharded as a large model is, each block by itself."""
    data.MAX_SINGLE_GROUP_BYTES = 0 if by_block else 64 * 2**20
    sizes = plan_mesh(training, VOCABULARY, mesh.world_size)
    assert not isinstance(sizes, list), sizes
    mesh = mesh.with_sizes(sizes)
    size = micro_batch_size(training, sizes, VOCABULARY)
    part = RankShare(mesh.coordinate("replicate", "shard"), sizes.data, size, equal=sizes.pipeline > 1)
    return parallelize_model(training, VOCABULARY, mesh, part.micro_batch), part


def my_batches(batch: MicroBatch, part: RankShare) -> list[MicroBatch]:
    start, stop = split_range(SEQUENCES, part.world_size, part.rank)
    count = part.num_micro_batches(SEQUENCES)
    bounds = [split_range(stop - start, count, number) for number in range(count)]
    return [part.filled(batch.each(lambda t, a=start + a, b=start + b: t[a:b])) for a, b in bounds]


def take_step(mesh: Mesh, case: Case, first: Callable[[ParallelModel], None] = lambda model: None) -> Outcome:
    """On a rank. Gradients are of the first micro-step, before any update; `first` is done before it."""
    model, part = built(mesh, case.spec(), by_block=case.packed)
    first(model)
    batch = step_batch(case.packed)
    loss, parts_M = model.forward_backward(my_batches(batch, part), float(batch.counted))
    optimizer = ShardOptimizer(model.weights.trainable, model.weights.layouts, case.spec().optimizer)
    squares = optimizer.gradient_squares()
    layers = Layers(model.weights, case.spec().model.resolve().num_layers)
    statistics = [torch.stack([loss, squares.sum()]), layers.sums(squares), part.at_place(parts_M)]
    sums = all_reduce_world(torch.cat(statistics), mesh)

    def gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad

    expert_biases = model.weights.expert_biases
    gradients = {
        name: whole.float().numpy().copy()
        for name, whole in gather_full_tensors(model.weights, gradient)
        if name not in expert_biases
    }
    gradients = {name: value for name, value in gradients.items() if not name.endswith(".balance")}
    mean, square_sum, *rest = sums.tolist()
    by_layer = dict(zip(layers.names, rest, strict=False))
    by_batch = {part.bounds_at(SEQUENCES, place): each for place, each in enumerate(rest[len(layers.names) :])}
    return Outcome(mean, square_sum**0.5, gradients, by_layer, by_batch)


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """What is not equal, within the tolerances; empty where all is."""
    wrong = []
    if not abs(found.loss - expected.loss) <= LOSS_TOLERANCE * abs(expected.loss):
        wrong.append(f"loss {found.loss!r} != {expected.loss!r}")
    if not abs(found.norm - expected.norm) <= 10 * LOSS_TOLERANCE * expected.norm:
        wrong.append(f"gradient norm {found.norm!r} != {expected.norm!r}")
    for (begin, end), part in found.batch_losses.items():
        theirs = sum(expected.batch_losses[number, number + 1] for number in range(begin, end))
        if not abs(part - theirs) <= 10 * LOSS_TOLERANCE * abs(theirs):
            wrong.append(f"loss of sequences {begin} to {end - 1}: {part!r} != {theirs!r}")
    squares: dict[str, float] = defaultdict(float)
    for name, gradient in found.gradients.items():
        squares[layer_of(name)] += float(np.square(gradient, dtype=np.float64).sum())
    for name, square in found.layer_squares.items():
        if not abs(square - squares[name]) <= 10 * LOSS_TOLERANCE * squares[name]:
            wrong.append(f"squared norm of {name}: {square!r} != {squares[name]!r} of its gradients")
    total = sum(found.layer_squares.values())
    if not abs(total - found.norm**2) <= 10 * LOSS_TOLERANCE * total:
        wrong.append(f"squared norms of the layers add up to {total!r}, not {found.norm**2!r}")
    if found.gradients.keys() != expected.gradients.keys():
        wrong.append(f"parameters differ: {sorted(found.gradients.keys() ^ expected.gradients.keys())[:3]}")
    for name in found.gradients.keys() & expected.gradients.keys():
        mine, reference = found.gradients[name], expected.gradients[name]
        worst = float(np.abs(mine - reference).max()) if mine.shape == reference.shape else float("nan")
        if not worst <= GRADIENT_TOLERANCE * float(np.abs(reference).max()):
            wrong.append(f"gradient of {name}: off by {worst:.2e} of {np.abs(reference).max():.2e}")
    return wrong


def compare(pool: RankPool, case: Case, references: dict[Any, Outcome]) -> list[str]:
    """What differs from one rank, which takes one sequence at a time. `references` keeps its outcomes."""
    key = (case.model, case.packed)
    if key not in references:
        (references[key],) = pool.run(1, take_step, Case(case.model, 1, {"micro_batch_sequences": 1}, case.packed))
    return differences(pool.run(case.world, take_step, case)[0], references[key])
