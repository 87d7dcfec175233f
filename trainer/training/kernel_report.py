"""Which of torch's kernels compute a run's attention."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec
from trainer.models.attention import attend, chunk_numbers, document_mask
from trainer.models.attention_kernels import partial_attention
from trainer.parallel.document_attention import document_attention

PROBE_LENGTH = 256
"""Tokens that are attended to find out: the choice depends on the other sizes."""
_KERNELS = {
    "_scaled_dot_product_flash_attention": "flash", "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_varlen_attn": "flash", "_flash_attention_forward": "flash",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_efficient_attention": "efficient",
}  # fmt: skip


def attention_kernels(training: TrainingSpec, sizes: MeshSizes, device: torch.device) -> str:
    """Return the kernels that the layers' attention uses on `device`, in alphabetical order.

    `flash`, `cudnn`, `efficient`, or `math` (plain matrix products). Found by calling attention on a few tokens, with
    the heads and the precision of the run.
    """
    shape, tensor = training.model.resolve(), sizes.tensor
    dtype = torch.bfloat16 if training.computes_in_bf16 else torch.float32
    length = min(PROBE_LENGTH, training.sequence_length)
    is_ring = sizes.context > 1 and training.parallelism.context_attention == "ring"
    query, key, value = (
        torch.zeros(1, max(1, heads // tensor), length, size, device=device, dtype=dtype)
        for heads, size in (
            (shape.num_heads, shape.head_size),
            (shape.num_kv_heads, shape.head_size),
            (shape.num_kv_heads, shape.head_size if is_ring else shape.value_size),
        )
    )
    documents = None
    if training.data.packing != "none":
        documents = torch.zeros(1, length, dtype=torch.int32, device=device)
    cap = shape.attn_logit_softcapping
    found: set[str] = set()
    for layer_window, chunk in {(shape.window_of(layer), shape.chunk_of(layer)) for layer in range(shape.num_layers)}:
        window = None
        if layer_window is not None and layer_window < training.sequence_length:
            window = max(1, min(layer_window, length // 2))
        is_chunked = chunk is not None and chunk < training.sequence_length
        seen = chunk_numbers(documents, 1, length, max(1, length // 2), device) if is_chunked else documents
        mask = document_mask(seen, query)
        with _Kernels() as kernels:
            if is_ring:
                document_attention(query, key, value, None, causal=True, window=window, cap=cap)
            elif cap is not None or shape.attention_sinks:
                partial_attention(query, key, value, seen, causal=True, window=window, cap=cap)
            else:
                attend(query.requires_grad_(), key, value, mask, window)
        found |= kernels.found or {"math"}
    return ", ".join(sorted(found))


class _Kernels(TorchDispatchMode):  # type: ignore[misc] # torch does not annotate it
    """Records the kernels of attention that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        kernel = _KERNELS.get(operation.overloadpacket.__name__)
        if kernel is not None:
            self.found.add(kernel)
        return operation(*given, **(named or {}))
