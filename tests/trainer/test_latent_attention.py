"""DeepSeek's latent attention and groups of experts, beyond what all families of models have in common."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.trainer.families import LENGTH, SHAPES, TOKENS, VOCABULARY, export, exported_state, our_model
from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from trainer.contract.hugging_face import hugging_face_config, layout_of, shape_of_config
from trainer.contract.models import MLAShape, ModelShape, MoEShape
from trainer.contract.optimisation import LoraSpec
from trainer.contract.positions import RopeScaling
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.errors import TrainerError
from trainer.export.folder import with_base
from trainer.export.read import StoredWeights, load_decoder, load_exported
from trainer.models.attention import attend
from trainer.models.cache import use_kv_cache
from trainer.models.lora import add_adapters, is_adapter

MLA = {"q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "intermediate_size": 64, "mla": MLA,
    "moe": {"num_experts": 4, "experts_per_token": 2, "expert_size": 32, "shared_experts": 1, "first_dense_layers": 1,
            "scoring": "sigmoid", "num_groups": 2},
}  # fmt: skip
TARGETS = ["query", "key", "value", "output"]
ADAPTING: dict[str, Any] = {"lora": {"rank": 4, "alpha": 8.0}, "optimizer": {"learning_rate": 0.01}}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu", "attention_bias": False, "ep_size": 1,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc",
    "v_head_dim": 128, "quantization_config": FP8,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
}  # fmt: skip
V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400, "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu", "attention_bias": False,
    "first_k_dense_replace": 1, "kv_lora_rank": 512, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_experts_per_tok": 6,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 1.0,
    "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("base") / "run", tiny_training(model={"shape": SHAPE}))


@pytest.fixture(scope="module")
def adapted(base: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_on(base, tmp_path_factory.mktemp("adapted") / "run", **ADAPTING)


def run_on(base: FinishedRun, folder: Path, processes: int = 1, **changes: Any) -> FinishedRun:
    fields: dict[str, Any] = {"model": {"base": str(base.output / "model")}, "tokenizer": {}, **changes}
    training: TrainingSpec = with_base(tiny_training(**fields), base.output / "model")
    run = run_alone(folder, training, processes=processes, data=base.output.parent / "tiny.txt")
    assert run.end_class is EndClass.COMPLETED, run.end
    return run


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"parallelism": {"tensor": 2}}),
        (2, {"parallelism": {"context": 2, "zero": 3}}),
        (1, {"activation_checkpointing": "selective"}),
    ],
    ids=str,
)
def test_any_mesh_trains_the_same_adapters(
    processes: int, changes: dict[str, Any], base: FinishedRun, adapted: FinishedRun, tmp_path: Path
) -> None:
    losses = adapted.series("evaluation/loss")
    assert losses[20] < losses[0] - 0.005
    run = run_on(base, tmp_path / "run", processes, **ADAPTING, **changes)
    whole, parts = (load_exported(each.output / "model")[0].state_dict() for each in (adapted, run))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-3, atol=1e-4)


def test_muon_updates_the_same_on_tensor_ranks(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": {"shape": SHAPE}, "optimizer": {"name": "muon"}, "steps": 4}
    whole, parts = (
        run_alone(
            tmp_path / str(ranks), tiny_training(**changes, parallelism={"tensor": ranks}), processes=ranks
        ).series("train/loss")
        for ranks in (1, 2)
    )
    assert parts[4] == pytest.approx(whole[4], rel=1e-4)


def test_an_adapter_alone_is_put_on_its_base_by_peft(base: FinishedRun, tmp_path: Path) -> None:
    alone, merged = (
        run_on(base, tmp_path / kind, **{**ADAPTING, "lora": {"rank": 4, "targets": TARGETS, "export": kind}}, steps=8)
        for kind in ("adapter", "merged")
    )
    tokens = torch.arange(64).view(2, 32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base.output / "model", dtype=torch.float32)
    with torch.no_grad():
        found = peft.PeftModel.from_pretrained(theirs, alone.output / "model").eval()(tokens).logits
        expected = load_exported(merged.output / "model")[0](tokens)
        assert not torch.allclose(found, load_exported(base.output / "model")[0](tokens), atol=1e-3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2"])
def test_attention_stays_in_its_document(name: str, tmp_path: Path) -> None:
    ours = our_model(SHAPES[name])
    bounds = [0, 3, 20, LENGTH]
    documents, positions = torch.zeros(2, LENGTH, dtype=torch.int32), torch.zeros(2, LENGTH).long()
    for number, (low, high) in enumerate(pairwise(bounds)):
        documents[:, low:high], positions[:, low:high] = number, torch.arange(high - low)
    export(ours, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        found = ours(TOKENS, documents_BS=documents, positions_BS=positions)
        expected = torch.cat([theirs(TOKENS[:, low:high]).logits for low, high in pairwise(bounds)], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_kernel_for_documents_takes_values_of_another_size() -> None:
    """Shapes and gradients' shapes alone: the numbers need the GPU."""
    with FakeTensorMode():
        query = torch.empty(3, 4, 8, 12, dtype=torch.bfloat16, requires_grad=True)
        value = torch.empty(3, 4, 8, 10, dtype=torch.bfloat16, requires_grad=True)
        mixed = attend(query, query, value, torch.empty(17, dtype=torch.int32))
        assert mixed.shape == value.shape
        mixed.sum().backward()
        assert value.grad is not None and value.grad.shape == value.shape


@pytest.mark.parametrize(
    ("published", "billions", "active"), [(V3, 671.03, 37.55), (V2_LITE, 15.71, 2.66)], ids=["V3", "V2-Lite"]
)
def test_published_models_are_read(published: dict[str, Any], billions: float, active: float) -> None:
    shape = shape_of_config(published)
    assert layout_of(shape) == published["model_type"]
    assert shape.num_parameters(published["vocab_size"]) == pytest.approx(billions * 1e9, rel=1e-3)
    embeddings = published["vocab_size"] * shape.hidden_size
    per_token = shape.flops_per_token(published["vocab_size"], 1, causal=True) / 6 + embeddings
    assert per_token == pytest.approx(active * 1e9, rel=1e-2)
    written = hugging_face_config(shape, published["vocab_size"], 163840, "bfloat16", end_of_text=1)
    assert shape_of_config(written) == shape
    assert {name: written.get(name) for name in MLA} == {name: published[name] for name in MLA}


def test_scores_are_scaled_by_the_square_of_what_yarn_says() -> None:
    scaling = shape_of_config(V3).rope_scaling
    assert scaling is not None
    assert (scaling.amplitude, scaling.score_factor) == (1.0, pytest.approx(1.3688879**2))


@pytest.mark.parametrize(
    ("published", "changes", "message"),
    [
        (V3, {"rope_interleave": False}, "rope_interleave is False; only True"),
        (V3, {"attention_bias": True}, "attention_bias is True; only False"),
        (V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax'; only 'sigmoid'"),
        (V3, {"topk_method": "greedy"}, "topk_method is 'greedy'; only noaux_tc"),
        (V3, {"moe_layer_freq": 2}, "moe_layer_freq is 2; only 1"),
        (V3, {"num_key_value_heads": 8}, "num_kv_heads 8 must be num_heads 128"),
        (V3, {"n_group": 3}, "num_groups 3 does not divide num_experts 256"),
        (V3, {"topk_group": 9}, "groups_per_token 9 exceeds num_groups 8"),
        (V3, {"v_head_dim": 256}, "v_head_dim 256 exceeds the 192 elements of a key head"),
        (V3, {"qk_rope_head_dim": "x"}, "config.json"),
        (V3, {"q_lora_rank": -1}, "config.json"),
        (V3, {"quantization_config": {**FP8, "weight_block_size": [64, 64]}}, "only quant_method fp8 with"),
        (V3, {"quantization_config": "fp8"}, "quantization_config is 'fp8'; only quant_method fp8 with"),
        (V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob is True; only False"),
        (V2_LITE, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; only greedy, group_limited_greedy"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(
    published: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"config\.json.*take another model") as caught:
        shape_of_config({**published, **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_norm": True}, "qk_norm is not computed with mla; leave it out"),
        ({"head_dim": 16}, "head_dim is not computed with mla"),
        ({"num_kv_heads": 2}, "num_kv_heads 2 must be num_heads 4"),
        ({"mla": {**MLA, "qk_rope_head_dim": 3}}, "qk_rope_head_dim 3 must be even"),
        ({"mla": None, "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_length": 8, "mscale_all_dim": 1.0}},
         "mscale_all_dim needs mla; leave it out"),
        ({"rope_scaling": {"kind": "yarn", "factor": 4.0, "original_length": 8, "mscale": 1.0}},
         "mscale 1.0 needs mscale_all_dim"),
        ({"moe": {**SHAPE["moe"], "num_groups": 4}}, "num_groups 4 leaves 1 expert in a group"),
        ({"moe": {**SHAPE["moe"], "experts_per_token": 3}}, "groups_per_token 1 of 2 experts each are too few"),
    ],
)  # fmt: skip
def test_shapes_with_what_contradicts_latent_attention_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelShape.model_validate({**SHAPE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe": None}, "model.shape.mla .* cannot be exported to Hugging Face"),
        ({"moe": {**SHAPE["moe"], "shared_experts": 0}}, "moe.shared_experts 0 .* deepseek_v3 needs at least 1"),
        ({"moe": {**SHAPE["moe"], "scoring": "softmax"}}, "moe.normalise_weights True .* deepseek_v2 knows only False"),
        ({"mla": None, "moe": {"num_experts": 4, "experts_per_token": 2, "expert_size": 8, "num_groups": 2}},
         "moe.num_groups 2 .* mixtral knows only 1"),
    ],
)  # fmt: skip
def test_what_no_layout_has_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout_of(ModelShape.model_validate({**SHAPE, **changes}))


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelShape, Path, dict[str, torch.Tensor]]:
    """A model in fp8, in blocks of 128 x 128 of which the last ones are smaller; its folder; what its numbers mean."""
    shape = ModelShape(
        hidden_size=160, num_layers=2, num_heads=4, num_kv_heads=4, intermediate_size=300,
        mla=MLAShape(q_lora_rank=144, kv_lora_rank=136, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=40),
        moe=MoEShape(num_experts=2, experts_per_token=1, expert_size=130, shared_experts=1, scoring="sigmoid",
                     first_dense_layers=1),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("quantized")
    export(our_model(shape), folder)
    tensors, meant = load_file(folder / "model.safetensors"), {}
    for name, tensor in list(tensors.items()):
        if "proj" in name:
            scales = torch.rand(tuple(-(-size // 128) for size in tensor.shape)) + 0.5
            each = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: tensor.shape[0], : tensor.shape[1]]
            tensors[name] = (tensor / each).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scales
            tensor = tensors[name].float() * each
        meant[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    return shape, folder, meant


def recording(remember: Any, sizes: list[torch.Size]) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """Return `remember` that notes the sizes of what it is given."""

    def noted(new: torch.Tensor) -> list[torch.Tensor]:
        sizes.append(new.shape)
        return remember(new)

    return noted


@pytest.mark.parametrize("name", ["deepseek-v3", "moonlight"])
def test_the_cache_has_compressed_keys_and_values(name: str) -> None:
    """Of all heads together; with adapters too, which the cached numbers do not contain."""
    shape, device = SHAPES[name], torch.device("cpu")
    assert shape.mla is not None
    model = our_model(shape)
    add_adapters(model, LoraSpec(rank=2))
    generator = torch.Generator().manual_seed(6)
    sizes: list[torch.Size] = []
    with torch.no_grad(), use_kv_cache([model], LENGTH) as cache:
        for parameter_name, parameter in model.named_parameters():
            if is_adapter(parameter_name):
                parameter.normal_(0, 0.3, generator=generator)
        for block in model.blocks.values():
            block.attention.remember = recording(block.attention.remember, sizes)
        cache.prefill([5, 9], device)
        model(TOKENS[:, :9], positions_BS=cache.positions_BN)
        cache.step()
        found = model(TOKENS[:, 9:10], positions_BS=cache.positions_BN)[:, 0]
    assert set(sizes) == {(2, 1, count, shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim) for count in (9, 1)}
    with torch.no_grad():
        alone = [
            model(torch.cat([row[:count], row[9:10]])[None])[0, -1] for row, count in zip(TOKENS, (5, 9), strict=True)
        ]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)


def test_weights_in_blocks_of_fp8_are_read(quantized: tuple[ModelShape, Path, dict[str, torch.Tensor]]) -> None:
    shape, folder, meant = quantized
    model = load_decoder(folder, shape, VOCABULARY, LENGTH)
    found = exported_state(model)
    assert found.keys() == meant.keys()
    for name, tensor in meant.items():
        assert torch.equal(found[name], tensor), name


def test_a_part_of_a_matrix_in_fp8_is_that_part(
    quantized: tuple[ModelShape, Path, dict[str, torch.Tensor]],
) -> None:
    shape, folder, _ = quantized
    stored = StoredWeights(folder, shape)
    for name in ("blocks.0.mlp.up.weight", "blocks.1.mlp.experts.down", "blocks.0.attention.key_value_b.weight"):
        full = tuple(load_decoder(folder, shape, VOCABULARY, LENGTH).state_dict()[name].shape)
        whole = stored.whole(name, full)
        offsets = tuple(size // 3 for size in full)
        sizes = tuple(max(1, size // 2) for size in full)
        for dimension, (low, size) in enumerate(zip(offsets, sizes, strict=True)):
            whole = whole.narrow(dimension, low, size)
        assert torch.equal(stored.part(name, offsets, sizes, full), whole), name


def test_a_missing_scale_is_named(quantized: tuple[ModelShape, Path, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    shape, folder, _ = quantized
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.self_attn.o_proj.weight_scale_inv"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TrainerError, match=r"no tensor model.layers.0.self_attn.o_proj.weight_scale_inv"):
        StoredWeights(tmp_path, shape).whole("blocks.0.attention.output.weight", (160, 160))


def test_a_scaling_of_another_family_keeps_its_factor() -> None:
    """Families without latent attention have one factor of cosines and sines, as `transformers` computes it."""
    config = hugging_face_config(SHAPES["llama"], VOCABULARY, LENGTH, "float32", end_of_text=0)
    entries = {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}
    found = shape_of_config({**config, "rope_scaling": entries}).rope_scaling
    assert isinstance(found, RopeScaling) and found.mscale is None and found.score_factor == 1.0
