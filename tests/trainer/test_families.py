"""A checkpoint of each family on every kind of mesh, with adapters and with a cache: what `transformers` computes."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.trainer.families import LENGTH, SHAPES, TOKENS, VOCABULARY, export, exported_state, our_model, write_random
from tests.trainer.ranks import RankPool
from tests.trainer.runs import tiny_training
from trainer.contract.cost import RankCost
from trainer.contract.families import BY_TYPE
from trainer.contract.hugging_face import hugging_face_config, layout_of
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.models import ModelShape
from trainer.contract.optimisation import LoraSpec
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec
from trainer.data.batch import MicroBatch
from trainer.export.adapter import ADAPTER_CONFIG_NAME, ADAPTER_NAME, adapter_config, peft_name
from trainer.export.read import StoredWeights, load_decoder
from trainer.models.cache import use_kv_cache
from trainer.models.decoder import Decoder
from trainer.models.lora import add_adapters, is_adapter, merge_adapters
from trainer.optim.step import ShardOptimizer
from trainer.parallel.mesh import Mesh, all_reduce_world
from trainer.parallel.parallelize import parallelize_model
from trainer.training.export import write_json

MESHES: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"tensor": 2, "zero": 0}),
    ("qwen2", {"tensor": 2, "tensor_overlap": True, "zero": 3}),
    ("qwen2.5-small", {"pipeline": 2, "tensor": 2, "zero": 1}),
    ("qwen2", {"context": 2, "zero": 3}),
    ("qwen2", {"context": 2, "context_attention": "ulysses", "zero": 0}),
    ("qwen2-padded", {"tensor": 2, "zero": 3}),
    ("llama-padded", {"pipeline": 2, "tensor": 2, "zero": 1}),
    ("gemma2", {"tensor": 2, "zero": 3}),
    ("gemma2", {"tensor": 2, "tensor_overlap": True, "zero": 0}),
    ("gemma2", {"pipeline": 2, "context": 2, "context_attention": "ulysses", "zero": 1}),
    ("gemma2", {"context": 4, "zero": 0}),
    ("gemma2-full", {"context": 2, "tensor": 2, "zero": 3}),
    ("gemma3", {"tensor": 2, "zero": 3}),
    ("gemma3", {"tensor": 2, "tensor_overlap": True, "zero": 0}),
    ("gemma3", {"pipeline": 2, "context": 2, "context_attention": "ulysses", "zero": 1}),
    ("gemma3", {"context": 4, "zero": 0}),
    ("phi3", {"tensor": 2, "zero": 3}),
    ("phi3-long", {"context": 2, "tensor": 2, "zero": 1}),
    ("phi4-mini", {"pipeline": 2, "tensor": 2, "zero": 1}),
    ("olmo3", {"pipeline": 2, "tensor": 2}),
    ("olmo3", {"context": 2, "context_attention": "ulysses", "zero": 3}),
    ("olmo3", {"context": 2, "tensor": 2, "zero": 1}),
    ("olmo2", {"tensor": 2, "zero": 3}),
    ("olmo2", {"tensor": 2, "tensor_overlap": True, "zero": 0}),
    ("olmo2", {"pipeline": 2, "context": 2, "zero": 1}),
    ("mistral", {"tensor": 2, "pipeline": 2}),
    ("mistral", {"context": 2, "context_attention": "ulysses", "zero": 3}),
    ("mistral", {"context": 4, "zero": 3}),
    ("mixtral-window", {"expert": 2, "zero": 3}),
    ("mixtral-window", {"context": 2, "expert": 2, "zero": 3}),
    ("qwen3-yarn", {"context": 2, "tensor": 2}),
    ("deepseek-v3", {"tensor": 2, "zero": 3}),
    ("deepseek-v3", {"tensor": 2, "tensor_overlap": True, "expert": 2, "zero": 0}),
    ("deepseek-v3", {"pipeline": 2, "context": 2, "expert": 2, "zero": 1}),
    ("deepseek-v3", {"context": 2, "context_attention": "ulysses", "tensor": 2, "zero": 3}),
    ("moonlight", {"tensor": 2, "context": 2, "zero": 0}),
    ("deepseek-v2", {"expert": 2, "context": 2, "zero": 3}),
    ("deepseek-v2", {"pipeline": 2, "tensor": 2, "zero": 1}),
    ("deepseek-v2-lite", {"tensor": 2, "tensor_overlap": True, "zero": 2}),
    ("glm4-moe", {"expert": 2, "tensor": 2, "zero": 3}),
    ("gpt-oss", {"tensor": 2, "zero": 0}),
    ("gpt-oss", {"tensor": 2, "expert": 2, "zero": 3}),
    ("gpt-oss", {"pipeline": 2, "context": 2, "context_attention": "ulysses", "expert": 2, "zero": 1}),
    ("gpt-oss", {"context": 2, "tensor": 2, "zero": 3}),
    ("gpt-oss-full", {"context": 2, "tensor": 2, "zero": 2}),
    ("llama4-scout", {"tensor": 2, "expert": 2, "zero": 3}),
    ("llama4-scout", {"context": 2, "tensor": 2, "zero": 0}),
    ("llama4-scout", {"pipeline": 2, "context": 2, "context_attention": "ulysses", "expert": 2, "zero": 1}),
    ("llama4-maverick", {"tensor": 2, "tensor_overlap": True, "zero": 2}),
    ("llama4-maverick", {"pipeline": 2, "context": 2, "zero": 1}),
    ("glm-4.5", {"expert": 2, "zero": 3}),
    ("glm-4.6", {"tensor": 2, "zero": 2}),
    ("glm-4.6", {"pipeline": 2, "context": 2, "expert": 2, "zero": 1}),
]


SEPARATE = [name for name, shape in SHAPES.items() if not shape.fused_projections]
"""In these, `peft` has an adapter for each matrix."""


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as started:
        yield started


def training_of(shape: ModelShape, parallelism: dict[str, Any] | None = None) -> TrainingSpec:
    return tiny_training(
        model={"shape": shape.model_dump()}, parallelism=parallelism or {}, sequence_length=LENGTH,
        tokens_per_step=8 * LENGTH, evaluation={"every_steps": 10, "sequences": 8},
    )  # fmt: skip


def step_tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (8, LENGTH + 1), generator=torch.Generator().manual_seed(5))


def loss_and_norm(mesh: Mesh, training: TrainingSpec, folder: Path) -> tuple[float, float]:
    """Of a step from the stored model, on a rank: the mean loss and the norm of its gradient."""
    sizes = plan_mesh(training, VOCABULARY, mesh.world_size)
    assert isinstance(sizes, MeshSizes), sizes
    mesh = mesh.with_sizes(sizes)
    stored = StoredWeights(folder, training.model.resolve())
    model = parallelize_model(training, VOCABULARY, mesh, 1, load_shard=stored.part_of)
    mine = step_tokens().chunk(sizes.data)[mesh.coordinate("replicate", "shard")]
    batches = [MicroBatch(row[:, :-1], row[:, 1:]) for row in mine.split(1)]
    loss, _ = model.forward_backward(batches, 8.0 * LENGTH)
    optimizer = ShardOptimizer(model.weights.trainable, model.weights.layouts, training.optimizer)
    sums = all_reduce_world(torch.stack([loss, optimizer.gradient_squares().sum()]), mesh)
    return sums[0].item(), sums[1].sqrt().item()


@pytest.mark.parametrize(("name", "parallelism"), MESHES, ids=str)
def test_a_mesh_has_the_loss_and_the_gradient_of_transformers(
    name: str, parallelism: dict[str, Any], pool: RankPool, tmp_path: Path
) -> None:
    theirs = write_random(SHAPES[name], tmp_path)
    training = training_of(SHAPES[name], {"micro_batch_sequences": 1, **parallelism})
    loss, norm = pool.run(4, loss_and_norm, training, tmp_path / "theirs")[0]
    tokens = step_tokens()
    logits = theirs(tokens[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    expected.backward()
    squares = [each.grad.square().sum() for each in theirs.parameters() if each.grad is not None]
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert norm == pytest.approx(torch.stack(squares).sum().sqrt().item(), rel=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_the_cache_continues_as_transformers_does(name: str, tmp_path: Path) -> None:
    theirs = write_random(SHAPES[name], tmp_path)
    ours = load_decoder(tmp_path / "theirs", SHAPES[name], VOCABULARY, LENGTH)
    scaling = SHAPES[name].rope_scaling
    is_long = scaling is not None and scaling.kind == "longrope"  # `transformers` changes the factors on the way
    seen, device = TOKENS[:1, : 20 if is_long else 9].tolist()[0], torch.device("cpu")
    expected = list(seen)
    with torch.inference_mode(), use_kv_cache([ours], LENGTH) as cache:
        cache.prefill([len(seen)], device)
        while len(expected) < LENGTH:
            logits = ours(torch.tensor([seen]), positions_BS=cache.positions_BN)[0, 0]
            torch.testing.assert_close(logits, theirs(torch.tensor([expected])).logits[0, -1], rtol=1e-4, atol=1e-5)
            seen = [int(logits.argmax())]
            expected.append(seen[0])
            if len(expected) < LENGTH:
                cache.step()


@pytest.mark.parametrize(("name", "rank_stabilized"), [*((name, False) for name in SEPARATE), ("llama", True)])
def test_adapters_add_what_peft_adds(name: str, rank_stabilized: bool, tmp_path: Path) -> None:
    """Beside all matrices that have them: as `peft` loads them, and merged."""
    shape = SHAPES[name]
    plain = our_model(shape)
    export(plain, tmp_path / "base")
    lora = LoraSpec(rank=2, alpha=6.0, rank_stabilized=rank_stabilized, targets=["query", "key", "value", "output"])
    adapted = Decoder(shape, VOCABULARY, LENGTH)
    adapted.load_state_dict(plain.state_dict())
    add_adapters(adapted, lora)
    generator = torch.Generator().manual_seed(6)
    adapters = {name: each for name, each in adapted.named_parameters() if is_adapter(name)}
    assert {name for name, each in adapted.named_parameters() if each.requires_grad} == set(adapters)
    with torch.no_grad():
        for each in adapters.values():
            each.normal_(0, 0.3, generator=generator)
        ours = adapted(TOKENS)
    assert sum(each.numel() for each in adapters.values()) == shape.adapter_parameters(lora.rank, lora.targets)
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file({peft_name(name, shape): each.detach() for name, each in adapters.items()}, folder / ADAPTER_NAME)
    write_json(folder / ADAPTER_CONFIG_NAME, adapter_config(list(adapters), shape, lora, str(tmp_path / "base")))
    with torch.no_grad():
        theirs = peft.AutoPeftModelForCausalLM.from_pretrained(folder).eval()(TOKENS).logits
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)
        plain.load_state_dict(dict(merge_adapters(adapted.state_dict().items(), lora.scale)))
        torch.testing.assert_close(plain(TOKENS), ours, rtol=1e-4, atol=1e-4)


def test_adapters_of_parts_of_fused_matrices_are_exported_merged_only() -> None:
    shape = SHAPES["phi3"]
    LoraSpec().check_export(shape)
    LoraSpec(export="adapter", targets=["output", "down"]).check_export(shape)
    with pytest.raises(ValueError, match="query, up alone.* set lora.export to merged"):
        LoraSpec(export="adapter", targets=["query", "up", "down"]).check_export(shape)


@pytest.mark.parametrize(
    ("family", "field", "size"),
    [
        *(("mistral", "sliding_window", size) for size in (1, 2, 5, LENGTH - 1, LENGTH, 2 * LENGTH)),
        *(("llama4-scout", "attention_chunk_size", size) for size in (1, 5, LENGTH - 1, 2 * LENGTH)),
    ],
)
def test_what_attention_reaches_ends_with_its_document(family: str, field: str, size: int) -> None:
    """Rows of several documents against each document by itself, of transformers."""
    shape = SHAPES[family].model_copy(update={field: size})
    ours = our_model(shape)
    bounds = [0, 3, 20, LENGTH]
    documents, positions = torch.zeros(2, LENGTH, dtype=torch.int32), torch.zeros(2, LENGTH).long()
    for number, (low, high) in enumerate(pairwise(bounds)):
        documents[:, low:high], positions[:, low:high] = number, torch.arange(high - low)
    config = hugging_face_config(shape, VOCABULARY, LENGTH, "float32", end_of_text=0)
    theirs = getattr(transformers, config["architectures"][0])(transformers.AutoConfig.for_model(**config)).eval()
    theirs.load_state_dict(exported_state(ours))
    with torch.no_grad():
        found = ours(TOKENS, documents_BS=documents, positions_BS=positions)
        expected = torch.cat([theirs(TOKENS[:, low:high]).logits for low, high in pairwise(bounds)], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_flops_count_what_is_in_the_window() -> None:
    """Of the triangle below the diagonal, the smaller triangle beyond the window is left out."""
    full, narrow = SHAPES["llama"], SHAPES["mistral"]
    per_pair = 12 * full.num_layers * full.num_heads * full.head_size
    counts = [shape.flops_per_token(VOCABULARY, LENGTH, causal=True) * LENGTH for shape in (full, narrow)]
    assert counts[0] - counts[1] == pytest.approx(per_pair * (LENGTH - 11) ** 2 / 2, rel=1e-4)


@pytest.mark.parametrize("size", [1, 7, 16, LENGTH - 1, LENGTH, LENGTH + 1])
def test_flops_count_what_is_in_the_chunks(size: int) -> None:
    """The triangles of the chunks, of the one below the diagonal."""
    chunked = ModelShape(**{**SHAPES["llama"].model_dump(), "attention_chunk_size": size})
    per_pair = 12 * chunked.num_layers * chunked.num_heads * chunked.head_size
    counts = [shape.flops_per_token(VOCABULARY, LENGTH, causal=True) * LENGTH for shape in (SHAPES["llama"], chunked)]
    chunks = [min(size, LENGTH - low) for low in range(0, LENGTH, size)]
    seen = sum(length**2 for length in chunks)
    assert counts[0] - counts[1] == pytest.approx(per_pair * (LENGTH**2 - seen) / 2, rel=1e-3, abs=LENGTH)


@pytest.mark.parametrize("name", SHAPES)
def test_the_cost_counts_every_parameter(name: str) -> None:
    training = training_of(SHAPES[name])
    sizes = plan_mesh(training, VOCABULARY, 1)
    assert isinstance(sizes, MeshSizes)
    model = Decoder(SHAPES[name], VOCABULARY, LENGTH)
    counted = RankCost(training, VOCABULARY, sizes, 0).parameters.total
    assert counted == sum(each.numel() for each in model.parameters())


def test_every_declared_family_is_tested() -> None:
    assert {layout_of(shape) for shape in SHAPES.values()} == set(BY_TYPE)
    trained = {layout_of(SHAPES[name]) for name, _ in MESHES}
    assert {family for family in BY_TYPE if set(BY_TYPE[family].always) - {"qk_norm"}} <= trained


@pytest.mark.parametrize("model", ["qwen3", "mixtral"])
def test_a_feature_that_no_family_has_is_refused_in_the_plan(model: str) -> None:
    shape = SHAPES[model].model_copy(update={"rotary_fraction": 0.5})
    (problem,) = plan_mesh(training_of(shape), VOCABULARY, 1)
    assert "model.shape.rotary_fraction 0.5 cannot be exported" in problem.message


def test_a_shape_without_new_features_keeps_its_identity() -> None:
    """Its JSON is part of what a checkpoint is compared by: fields that came later are in it only where they are
    set."""
    assert set(SHAPES["llama"].model_dump(mode="json")) == {
        "hidden_size", "num_layers", "num_heads", "num_kv_heads", "intermediate_size", "head_dim", "rope_theta",
        "rope_scaling", "norm_epsilon", "tie_embeddings", "qk_norm", "moe",
    }  # fmt: skip
    for shape in SHAPES.values():
        assert ModelShape.model_validate_json(shape.model_dump_json()) == shape
