"""Blocks of several families, what autograd stores of them, and the estimate of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.trainer.runs import tiny_training
from trainer.contract.cost import RankCost
from trainer.contract.models import ModelShape
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec
from trainer.models.decoder import Decoder, initialise

VOCABULARY = 101
BATCH, LENGTH = 2, 256
BLOCK = {
    "hidden_size": 256, "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 768, "head_dim": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_size": 192, "shared_experts": 1, "scoring": "sigmoid"}
BLOCKS: dict[str, dict[str, Any]] = {
    "dense": {},
    "biases": {"attention_bias": True},
    "norms of queries and keys": {"qk_norm": True},
    "norms behind": {"norm_position": "after", "qk_norm": True},
    "norms on both sides": {"norm_position": "both", "activation": "gelu_tanh"},
    "soft cap": {"attn_logit_softcapping": 20.0},
    "sinks": {"attention_sinks": True, "moe": {**EXPERTS, "shared_experts": 0, "biases": True, "swiglu_limit": 7.0}},
    "mixture": {"moe": EXPERTS},
    "weighed inputs": {"l2_qk_norm": True, "moe": {**EXPERTS, "experts_per_token": 1, "weigh_inputs": True,
                                                   "normalise_weights": False}},
    "latent attention": {"num_kv_heads": 4, "head_dim": None, "mla": {
        "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}},
}  # fmt: skip


def stored_bytes(decoder: Decoder, call: Callable[[], Tensor], shared: list[Tensor]) -> int:
    """Return the bytes that `call` stores for the backward pass, other than weights and `shared` tensors."""
    others = {each.untyped_storage().data_ptr() for each in [*decoder.parameters(), *shared]}
    stored: dict[int, Tensor] = {}

    def store(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in others and tensor.is_floating_point():
            stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
        call()
    return sum(tensor.untyped_storage().nbytes() for tensor in stored.values())


def block_of(
    shape: ModelShape, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Decoder, Callable[[], Tensor], list[Tensor]]:
    """Return a model of one block, what runs the block, and the positions that all layers share."""
    decoder = Decoder(shape, VOCABULARY, LENGTH)
    decoder.zero_buffers()
    initialise(decoder, 1)
    decoder.to(device, dtype)
    x_BSD = torch.randn(BATCH, LENGTH, shape.hidden_size, dtype=dtype, device=device, requires_grad=True)
    positions = decoder.layer_positions(None, LENGTH, x_BSD)(0)
    shared = [each for each in positions if isinstance(each, Tensor)]
    (block,) = decoder.blocks.values()
    return decoder, lambda: block(x_BSD, positions, None), shared


def predicted_bytes(training: TrainingSpec, *, on_gpu: bool = False) -> int:
    """Return the estimate for one rank and micro-batches of BATCH sequences, without scores of attention."""
    cost = RankCost(training, VOCABULARY, MeshSizes(), 0, BATCH, on_gpu=on_gpu)
    return cost.memory().activations - cost.scores_bytes


def training_of(changes: dict[str, Any], **fields: Any) -> TrainingSpec:
    """Return a spec of a model of one block with these changes of its shape."""
    return tiny_training(
        model={"shape": {**BLOCK, **changes}}, sequence_length=LENGTH, tokens_per_step=BATCH * LENGTH, **fields
    )
