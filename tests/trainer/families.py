"""Tiny random models of each family of Hugging Face's layouts, and their folders."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from trainer.contract.hugging_face import hugging_face_config
from trainer.contract.models import MLAShape, ModelShape, MoEShape
from trainer.contract.positions import RopeScaling, TemperatureTuning
from trainer.export.names import hugging_face_names
from trainer.export.write import exported_tensors, file_name, split_tensors, write_index
from trainer.models.decoder import Decoder, initialise

VOCABULARY, LENGTH = 96, 48
SIZES = {"hidden_size": 32, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 56}
LATENT = {**SIZES, "num_kv_heads": 4}
SOFTMAX = MoEShape(num_experts=4, experts_per_token=2, expert_size=24)
STRETCHED = RopeScaling(factor=8.0, original_length=16)
GEMMA = {"norm_position": "both", "offset_norms": True, "activation": "gelu_tanh", "scale_embeddings": True}
GEMMA2 = {
    **SIZES, **GEMMA, "num_layers": 4, "tie_embeddings": True, "head_dim": 16, "pad_token_id": 0, "norm_epsilon": 1e-6,
    "scale_window_rope": True,
}  # fmt: skip
GPT_OSS = {
    **SIZES, "num_layers": 4, "intermediate_size": 24, "head_dim": 16, "attention_bias": True,
    "attention_output_bias": True, "attention_sinks": True, "scale_window_rope": True,
    "moe": SOFTMAX.model_copy(update={"biases": True, "swiglu_limit": 0.25}),
}  # fmt: skip
LLAMA4 = {
    **SIZES, "num_layers": 4, "head_dim": 16, "interleaved_rope": True, "rope_theta": 5e5,
    "moe": MoEShape(
        num_experts=4, experts_per_token=2, expert_size=24, shared_experts=1, scoring="sigmoid",
        normalise_weights=False, weigh_inputs=True,
    ),
}  # fmt: skip
SHAPES = {
    "llama": ModelShape(**SIZES),
    "llama-3.1": ModelShape(**SIZES, rope_theta=500.0, rope_scaling=STRETCHED, tie_embeddings=True),
    "llama-linear": ModelShape(**SIZES, rope_scaling=RopeScaling(kind="linear", factor=2.5)),
    "qwen2.5-yarn": ModelShape(
        **SIZES, attention_bias=True, rope_theta=1000.0, head_dim=16,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=24),
    ),
    "qwen3-yarn": ModelShape(
        **SIZES, qk_norm=True, head_dim=16,
        rope_scaling=RopeScaling(
            kind="yarn", factor=3.0, original_length=40, beta_fast=9.0, beta_slow=0.5, attention_factor=1.3,
            truncate=False,
        ),
    ),
    "qwen2": ModelShape(**SIZES, attention_bias=True, norm_epsilon=1e-6),
    "qwen2.5-small": ModelShape(**SIZES, attention_bias=True, tie_embeddings=True, rope_theta=1e6),
    "qwen2-padded": ModelShape(**SIZES, attention_bias=True, pad_token_id=61),
    "llama-padded": ModelShape(**SIZES, tie_embeddings=True, pad_token_id=0),
    "qwen3": ModelShape(**SIZES, qk_norm=True, head_dim=16, norm_epsilon=1e-6),
    "gemma2": ModelShape(
        **GEMMA2, sliding_window=9, full_attention_every=2, query_pre_attn_scalar=24, attn_logit_softcapping=0.5,
        final_logit_softcapping=0.75,
    ),
    "gemma2-full": ModelShape(
        **GEMMA2, query_pre_attn_scalar=16, attn_logit_softcapping=0.25,
        rope_scaling=RopeScaling(kind="linear", factor=8.0),
    ),
    "gemma3": ModelShape(
        **{**SIZES, "num_layers": 4}, **GEMMA, qk_norm=True, tie_embeddings=True, head_dim=16, sliding_window=9,
        full_attention_every=2, rope_theta=1e6, window_rope_theta=1e4, query_pre_attn_scalar=24, pad_token_id=0,
        norm_epsilon=1e-6, final_logit_softcapping=2.0, rope_scaling=RopeScaling(kind="linear", factor=8.0),
    ),
    "gemma3-full": ModelShape(**SIZES, **GEMMA, qk_norm=True, query_pre_attn_scalar=8),
    "phi3": ModelShape(**SIZES, fused_projections=True, sliding_window=11),
    "phi4-mini": ModelShape(
        **SIZES, fused_projections=True, tie_embeddings=True, head_dim=16, rotary_fraction=0.75, pad_token_id=9
    ),
    "phi3-long": ModelShape(
        **SIZES, fused_projections=True,
        rope_scaling=RopeScaling(
            kind="longrope", factor=8.0, original_length=16, short_factors=(1.0, 1.1, 1.2, 1.3),
            long_factors=(1.5, 2.5, 5.0, 9.0),
        ),
    ),
    "phi4-mini-short": ModelShape(
        **SIZES, fused_projections=True, tie_embeddings=True, rotary_fraction=0.75,
        rope_scaling=RopeScaling(
            kind="longrope", factor=2.0, original_length=64, short_factors=(1.0, 1.2, 1.4),
            long_factors=(1.5, 5.0, 13.0),
        ),
    ),
    "olmo3": ModelShape(
        **{**SIZES, "num_layers": 4}, wide_qk_norm=True, norm_position="after", sliding_window=9,
        full_attention_every=2, rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=24),
    ),
    "olmo3-window": ModelShape(**SIZES, wide_qk_norm=True, norm_position="after", sliding_window=9, pad_token_id=1),
    "olmo2": ModelShape(**SIZES, wide_qk_norm=True, norm_position="after", rope_theta=5e5),
    "qwen3-moe": ModelShape(
        **SIZES, qk_norm=True, moe=SOFTMAX.model_copy(update={"first_dense_layers": 1, "normalise_weights": False})
    ),
    "mistral": ModelShape(**SIZES, sliding_window=11, norm_epsilon=1e-6),
    "mixtral-window": ModelShape(**{**SIZES, "intermediate_size": 24}, moe=SOFTMAX, sliding_window=7),
    "mixtral": ModelShape(**{**SIZES, "intermediate_size": 24}, moe=SOFTMAX),
    "gpt-oss": ModelShape(
        **GPT_OSS, sliding_window=9, full_attention_every=2, rope_theta=150_000.0,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=24, truncate=False),
    ),
    "gpt-oss-full": ModelShape(**GPT_OSS),
    "llama4-scout": ModelShape(
        **LLAMA4, l2_qk_norm=True, attention_chunk_size=9, full_attention_every=4, no_rope_every=4,
        temperature_tuning=TemperatureTuning(floor_scale=7, attn_scale=0.5),
        rope_scaling=RopeScaling(factor=16.0, original_length=16, high_frequency_factor=1.0),
    ),
    "llama4-maverick": ModelShape(
        **{**LLAMA4, "moe": LLAMA4["moe"].model_copy(update={"experts_per_token": 1, "layer_interval": 2})},
        attention_chunk_size=13, full_attention_every=2, no_rope_every=2,
        temperature_tuning=TemperatureTuning(floor_scale=5), pad_token_id=7,
    ),
    "llama4-full": ModelShape(**LLAMA4, l2_qk_norm=True, no_rope_every=3, tie_embeddings=True),
    "llama4-chunks": ModelShape(**LLAMA4, attention_chunk_size=16),
    "glm4-moe": ModelShape(
        **SIZES,
        moe=MoEShape(
            num_experts=4, experts_per_token=2, expert_size=24, shared_experts=2, first_dense_layers=1,
            scoring="sigmoid", weight_scale=1.5, num_groups=2,
        ),
    ),
    "glm-4.5": ModelShape(
        **SIZES, attention_bias=True, rotary_fraction=0.5, head_dim=12,
        moe=MoEShape(num_experts=4, experts_per_token=2, expert_size=24, shared_experts=1, scoring="sigmoid"),
    ),
    "glm-4.6": ModelShape(
        **SIZES, attention_bias=True, rotary_fraction=0.5, qk_norm=True, head_dim=16,
        moe=MoEShape(
            num_experts=4, experts_per_token=2, expert_size=24, shared_experts=1, first_dense_layers=1,
            scoring="sigmoid", weight_scale=2.5,
        ),
    ),
    "deepseek-v3": ModelShape(
        **LATENT, norm_epsilon=1e-6,
        mla=MLAShape(q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=12),
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=24, mscale=1.0, mscale_all_dim=0.7),
        moe=MoEShape(
            num_experts=8, experts_per_token=3, expert_size=24, num_groups=4, groups_per_token=2, shared_experts=1,
            first_dense_layers=1, scoring="sigmoid", weight_scale=2.5,
        ),
    ),
    "moonlight": ModelShape(
        **LATENT,
        mla=MLAShape(kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16),
        moe=MoEShape(
            num_experts=4, experts_per_token=2, expert_size=24, shared_experts=2, first_dense_layers=1,
            scoring="sigmoid", weight_scale=2.4,
        ),
    ),
    "deepseek-v2": ModelShape(
        **LATENT, norm_epsilon=1e-6,
        mla=MLAShape(q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24),
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=24, mscale=0.7, mscale_all_dim=0.7),
        moe=MoEShape(
            num_experts=8, experts_per_token=3, expert_size=24, num_groups=4, groups_per_token=2, shared_experts=2,
            first_dense_layers=1, normalise_weights=False, weight_scale=4.0,
        ),
    ),
    "deepseek-v2-lite": ModelShape(
        **LATENT, norm_epsilon=1e-6,
        mla=MLAShape(kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16),
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=24, mscale_all_dim=0.7),
        moe=MoEShape(
            num_experts=4, experts_per_token=2, expert_size=24, shared_experts=2, first_dense_layers=1,
            normalise_weights=False,
        ),
    ),
}  # fmt: skip
TOKENS = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def our_model(shape: ModelShape, vocab_size: int = VOCABULARY) -> Decoder:
    """Random weights that are far enough from nothing for a wrong one to show."""
    model = Decoder(shape, vocab_size, LENGTH)
    initialise(model, seed=3)
    model.zero_buffers()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.empty_like(parameter).normal_(0, 0.1, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("balance") and hugging_face_names(name, shape):
                buffer.normal_(0, 0.3, generator=generator)
    return model.eval()


def exported_state(model: Decoder) -> dict[str, torch.Tensor]:
    """The tensors of a model by the names of its layout."""
    return {theirs: part for _, theirs, part in exported_tensors(model.state_dict().items(), model.shape)}


def export(model: Decoder, folder: Path, largest_bytes: int = 2**30) -> None:
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in exported_state(model).items()}
    files = split_tensors(((name, tensor.nbytes) for name, tensor in tensors.items()), largest_bytes)
    for number, file in enumerate(files):
        save_file({name: tensors[name] for name in file}, folder / file_name(number, len(files)), {"format": "pt"})
    write_index(folder, files)
    config = hugging_face_config(model.shape, model.vocab_size, LENGTH, "float32", end_of_text=0)
    (folder / "config.json").write_text(json.dumps(config))


def write_random(shape: ModelShape, folder: Path) -> transformers.PreTrainedModel:
    """Write a model that `transformers` has made, in many files, and return it. No norm is 1 and no bias is 0."""
    export(our_model(shape), folder / "first")
    config = transformers.AutoConfig.from_pretrained(folder / "first")
    torch.manual_seed(7)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for tensor in theirs.parameters():
            tensor += 0.1 * torch.randn_like(tensor)
    theirs.save_pretrained(folder / "theirs", max_shard_size="20KB")
    return theirs
