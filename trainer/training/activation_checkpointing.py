"""Activation checkpointing: which activations of a layer are stored for the backward pass, and which are recomputed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainer.contract.launch_plan import is_recomputed
from trainer.contract.training import TrainingSpec
from trainer.models.decoder import Decoder
from trainer.models.nf4 import NF4_LINEAR

_aten = torch.ops.aten
SAVED_OPERATIONS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten._grouped_mm.default,
    _aten._scaled_mm.default,
    NF4_LINEAR,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
    torch.ops.athanor.causal_attention.default,
    torch.ops._c10d_functional.all_gather_into_tensor.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""Operations whose outputs `selective` stores: matrix products, fused attention and collectives. The rest is cheap to
recompute: norms, rotary embeddings and elementwise operations."""


def apply_activation_checkpointing(stage: Decoder, training: TrainingSpec) -> None:
    """Set `recompute` of the stage's blocks as the spec says."""
    for number, block in stage.blocks.items():
        if is_recomputed(int(number), stage.shape.num_layers, training.recompute_layers):
            block.recompute = _POLICIES[training.activation_checkpointing]


def _policy(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in SAVED_OPERATIONS else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


_POLICIES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "selective": partial(checkpoint, use_reentrant=False, context_fn=_contexts),
    "full": partial(checkpoint, use_reentrant=False),
}
