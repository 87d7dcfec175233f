"""Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU or a mixture of experts.

Plain single-device maths. What spreads a model over ranks replaces the functions named `enter`, `leave`, `attend`,
`run_experts` and `combine`, and cuts parameters; the maths here is the same on any mesh.

Shape suffixes: B batch, S sequence, D hidden, V vocabulary. The parameter names are ours; `export.names` maps them to
Hugging Face's.
"""

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.contract.models import ModelShape
from trainer.models.attention import Attention, RopeCache, Rotary, document_mask
from trainer.models.feed_forward import FeedForward
from trainer.models.loss import Combine, linear_cross_entropy
from trainer.models.moe import MixtureOfExperts

INITIAL_STD = 0.02


def unchanged(x: Tensor) -> Tensor:
    """Return the argument."""
    return x


class Embedding(nn.Module):
    """Words from `vocab_start_index` on; on one device that is all of them, and `leave` does nothing."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.vocab_start_index: int | None = None
        self.leave: Callable[[Tensor], Tensor] = unchanged

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return the embeddings of token ids, [B, S, D]; zeros for ids of other ranks."""
        if self.vocab_start_index is None:
            return functional.embedding(tokens_BS, self.weight)
        local_ids_BS = tokens_BS - self.vocab_start_index
        is_here_BS = (local_ids_BS >= 0) & (local_ids_BS < self.weight.shape[0])
        x_BSD = functional.embedding(local_ids_BS.where(is_here_BS, 0), self.weight)
        return self.leave(x_BSD * is_here_BS[..., None].to(x_BSD.dtype))


class Head(nn.Module):
    """Hidden states to logits, or to the summed loss where targets are given. A tied head has no weight of its own."""

    def __init__(self, vocab_size: int, hidden_size: int, *, owns_weight: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size)) if owns_weight else None
        self.vocab_start_index = 0
        self.combine: Combine | None = None
        self.z_loss = 0.0

    def forward(self, x_BSD: Tensor, targets_BS: Tensor | None, tied_weight: Tensor | None) -> Tensor:
        """Return logits, [B, S, V], or without them the summed loss if there are targets."""
        weight = self.weight if tied_weight is None else tied_weight
        assert weight is not None
        if targets_BS is None:
            return functional.linear(x_BSD, weight)
        z_loss = self.z_loss if torch.is_grad_enabled() else 0.0  # what is held out is measured by its loss alone
        return linear_cross_entropy(
            x_BSD.flatten(0, 1), weight, targets_BS.flatten(), z_loss, self.vocab_start_index, self.combine
        )


class Block(nn.Module):
    """`recompute` runs the layer so that less is stored for the backward pass
    (`trainer.training.activation_checkpointing`); None: everything is.

    `enter` and `leave` stand around what tensor parallelism spreads: the first brings whole sequences, the second
    adds the ranks' parts up.
    """

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.recompute: Callable[..., Tensor] | None = None
        self.enter: Callable[[Tensor], Tensor] = unchanged
        self.leave: Callable[[Tensor], Tensor] = unchanged
        self.attention_norm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.mlp: FeedForward | MixtureOfExperts
        if shape.moe is not None and shape.is_moe_layer(layer):
            self.mlp = MixtureOfExperts(shape.moe, shape.hidden_size)
        else:
            self.mlp = FeedForward(shape.hidden_size, shape.intermediate_size)

    def forward(self, x_BSD: Tensor, rope_cache: RopeCache, mask: Tensor | None) -> Tensor:
        """Return the block's output, [B, S, D], recomputed in the backward pass where `recompute` is set."""
        if self.recompute is not None and torch.is_grad_enabled():
            return self.recompute(self._compute, x_BSD, rope_cache, mask)
        return self._compute(x_BSD, rope_cache, mask)

    def _compute(self, x_BSD: Tensor, rope_cache: RopeCache, mask: Tensor | None) -> Tensor:
        x_BSD = x_BSD + self.leave(self.attention(self.enter(self.attention_norm(x_BSD)), rope_cache, mask))
        return x_BSD + self.leave(self.mlp(self.enter(self.mlp_norm(x_BSD))))


class Decoder(nn.Module):
    """The whole model, or the stage of it that holds `layers` (and embedding, and head).

    Blocks are called by their number in the whole model, so a parameter has one name wherever it lies.
    """

    def __init__(
        self,
        shape: ModelShape,
        vocab_size: int,
        sequence_length: int,
        layers: Iterable[int] | None = None,
        *,
        has_embedding: bool = True,
        has_head: bool = True,
    ) -> None:
        super().__init__()
        self.shape, self.vocab_size = shape, vocab_size
        self.rotary = Rotary(shape, sequence_length)
        self.mask_of: Callable[[Tensor | None, Tensor], Tensor | None] = document_mask
        self.enter: Callable[[Tensor], Tensor] = unchanged
        self.sequence_shards = 1
        self.embedding = Embedding(vocab_size, shape.hidden_size) if has_embedding else None
        numbers = range(shape.num_layers) if layers is None else layers
        self.blocks = nn.ModuleDict({str(number): Block(shape, number) for number in numbers})
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon) if has_head else None
        self._is_tied = shape.tie_embeddings and has_embedding and has_head
        self.head = Head(vocab_size, shape.hidden_size, owns_weight=not self._is_tied) if has_head else None

    def forward(
        self,
        x: Tensor,
        targets_BS: Tensor | None = None,
        documents_BS: Tensor | None = None,
        positions_BS: Tensor | None = None,
    ) -> Tensor:
        """Tokens [B, S] (hidden states [B, S, D] where another stage has the embedding) to logits [B, S, V], to the
        summed loss where targets are given, or to hidden states where another stage has the head.

        With tensor parallelism `sequence_shards` ranks each hold a part of the sequence between the layers.
        """
        length = x.shape[1] if self.embedding is not None else x.shape[1] * self.sequence_shards
        if self.embedding is not None:
            x = self.embedding(x)
        rope_cache = self.rotary.rope_cache(positions_BS, length, x)
        mask = self.mask_of(documents_BS, x)
        for block in self.blocks.values():
            x = block(x, rope_cache, mask)
        if self.norm is None or self.head is None:
            return x
        tied_weight = self.embedding.weight if self._is_tied and self.embedding is not None else None
        return self.head(self.enter(self.norm(x)), targets_BS, tied_weight)

    def zero_buffers(self) -> None:
        """Set all buffers to zero."""
        for buffer in self.buffers():
            buffer.zero_()


def initial_value(name: str, size: Iterable[int], num_layers: int, seed: int) -> Tensor:
    """Return a parameter's initial value, undivided, in fp32 on the CPU: a function of its name and the seed alone.

    Normal weights, narrower for what writes to the residual stream (Radford et al. 2019, 1/sqrt(2 layers)).
    """
    size = tuple(size)
    if len(size) == 1:
        return torch.ones(size)
    if name.endswith("lora_b"):  # an adapter begins as nothing
        return torch.zeros(size)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    writes_residual = name.endswith(("attention.output.weight", "down.weight", "experts.down"))
    if name.endswith("lora_a"):
        return torch.empty(size).normal_(0.0, size[1] ** -0.5, generator=generator)
    std = INITIAL_STD / (2 * num_layers) ** 0.5 if writes_residual else INITIAL_STD
    return torch.empty(size).normal_(0.0, std, generator=generator)


def initialise(model: Decoder, seed: int) -> None:
    """Of a whole model; a spread one is filled by `parallel.layout`, with the same numbers."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, parameter.shape, model.shape.num_layers, seed))
