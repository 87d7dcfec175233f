"""Llama-style decoder: RMSNorm, rotary positions, grouped-query or latent attention, SwiGLU or a mixture of experts.

Plain single-device mathematics. `trainer.parallel` shards the parameters and replaces the functions `gather_input`,
`reduce_output`, `gather_head_input`, `attend`, `run_experts`, `project_in`, `project_out` and `all_reduce`, which do
nothing or only local work here.

Shape suffixes: B batch, S sequence, D hidden, V vocabulary. The parameter names are ours; `export.names` maps them to
Hugging Face's.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.contract.models import ModelShape
from trainer.models.attention import (
    Attention,
    LayerPositions,
    Rotary,
    chunk_numbers,
    document_mask,
    make_norm,
    temperature_factors,
)
from trainer.models.feed_forward import FeedForward, identity
from trainer.models.latent_attention import LatentAttention
from trainer.models.loss import AllReduce, cap_logits, linear_cross_entropy, linear_log_probabilities
from trainer.models.moe import MixtureOfExperts
from trainer.models.normal_numbers import draw_box

INITIAL_STD = 0.02
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


class Embedding(nn.Module):
    """Token embeddings: the rows of this rank, from `vocab_start_index` on; None: the complete vocabulary.

    `reduce_output` sums over the ranks that have the other rows. The row `pad_token_id` gets no gradient.
    """

    def __init__(self, vocab_size: int, hidden_size: int, pad_token_id: int | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.pad_token_id = pad_token_id
        self.vocab_start_index: int | None = None
        self.reduce_output: Callable[[Tensor], Tensor] = identity

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return the embeddings of token ids, [B, S, D], or what `reduce_output` makes of this rank's part of them."""
        if self.vocab_start_index is None:
            return functional.embedding(tokens_BS, self.weight, self._local_pad_id)
        local_ids_BS = tokens_BS - self.vocab_start_index
        is_here_BS = (local_ids_BS >= 0) & (local_ids_BS < self.weight.shape[0])
        x_BSD = functional.embedding(local_ids_BS.where(is_here_BS, 0), self.weight, self._local_pad_id)
        return self.reduce_output(x_BSD * is_here_BS[..., None].to(x_BSD.dtype))

    @property
    def _local_pad_id(self) -> int | None:
        """Return the row of this rank that gets no gradient."""
        if self.pad_token_id is None or self.vocab_start_index is None:
            return self.pad_token_id
        local_id = self.pad_token_id - self.vocab_start_index
        return local_id if 0 <= local_id < self.weight.shape[0] else None


class Head(nn.Module):
    """The output layer: logits, or the summed loss if there are targets, or with `is_per_token` the log-probability of
    each. A tied head has no weight of its own.

    With tensor parallelism the weight has the vocabulary entries from `vocab_start_index` on, and `all_reduce` reduces
    a tensor in place over the ranks that have the others.
    """

    def __init__(self, vocab_size: int, hidden_size: int, cap: float | None, *, owns_weight: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size)) if owns_weight else None
        self._cap = cap
        self.vocab_start_index = 0
        self.all_reduce: AllReduce | None = None
        self.z_loss, self.is_per_token = 0.0, False

    def forward(self, x_BSD: Tensor, targets_BS: Tensor | None, tied_weight: Tensor | None) -> Tensor:
        """Return the logits, [B, S, V], or with targets the loss summed over them, a scalar in fp32, or with
        `is_per_token` their log-probabilities, [B, S] in fp32."""
        weight = self.weight if tied_weight is None else tied_weight
        assert weight is not None
        if targets_BS is None:
            return cap_logits(functional.linear(x_BSD, weight), self._cap)
        if self.is_per_token:
            return linear_log_probabilities(
                x_BSD.flatten(0, 1), weight, targets_BS.flatten(), self.vocab_start_index, self.all_reduce, self._cap
            ).view_as(targets_BS)
        z_loss = self.z_loss if torch.is_grad_enabled() else 0.0  # evaluation reports the loss without it
        return linear_cross_entropy(
            x_BSD.flatten(0, 1), weight, targets_BS.flatten(), z_loss, self.vocab_start_index, self.all_reduce,
            self._cap,
        )  # fmt: skip


class Block(nn.Module):
    """A decoder layer: attention, then a feed-forward layer or a mixture of experts, with norms of their inputs, of
    their outputs, or both.

    `recompute` runs the layer with activation checkpointing (`trainer.training.activation_checkpointing`); None: all
    activations are stored. Tensor parallelism replaces `gather_input`, which gathers the sequence in front of attention
    and feed-forward layer, and `reduce_output`, which sums their outputs over the ranks and scatters the sequence.
    """

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.recompute: Callable[..., Tensor] | None = None
        self.gather_input: Callable[[Tensor], Tensor] = identity
        self.reduce_output: Callable[[Tensor], Tensor] = identity
        inputs, outputs = shape.norm_position != "after", shape.norm_position != "before"
        self.attention_norm, self.mlp_norm = (_norm_if(inputs, shape) for _ in range(2))
        self.attention_output_norm, self.mlp_output_norm = (_norm_if(outputs, shape) for _ in range(2))
        self.attention: Attention | LatentAttention
        self.attention = Attention(shape, layer) if shape.mla is None else LatentAttention(shape, layer)
        self.mlp: FeedForward | MixtureOfExperts
        if shape.moe is not None and shape.is_moe_layer(layer):
            self.mlp = MixtureOfExperts(shape.moe, shape.hidden_size)
        else:
            self.mlp = FeedForward(shape.hidden_size, shape.intermediate_size, ACTIVATIONS[shape.activation])

    def forward(self, x_BSD: Tensor, positions: LayerPositions, mask: Tensor | None) -> Tensor:
        """Return the block's output, [B, S, D], recomputed in the backward pass where `recompute` is set."""
        if self.recompute is not None and torch.is_grad_enabled():
            return self.recompute(self._compute, x_BSD, positions, mask)
        return self._compute(x_BSD, positions, mask)

    def _compute(self, x_BSD: Tensor, positions: LayerPositions, mask: Tensor | None) -> Tensor:
        attended_BSD = self.attention(self.gather_input(self.attention_norm(x_BSD)), positions, mask)
        attended_BSD = self.reduce_output(attended_BSD)
        if self.attention.output_bias is not None:
            attended_BSD = attended_BSD + self.attention.output_bias
        x_BSD = x_BSD + self.attention_output_norm(attended_BSD)
        return x_BSD + self.mlp_output_norm(self.reduce_output(self.mlp(self.gather_input(self.mlp_norm(x_BSD)))))


def _norm_if(is_there: bool, shape: ModelShape) -> nn.Module:
    return make_norm(shape.hidden_size, shape) if is_there else nn.Identity()


class Decoder(nn.Module):
    """The complete model, or a pipeline stage of it with the blocks `layers`, and perhaps the embedding and the head.

    Blocks are named by their number in the complete model, so a parameter has the same name in every stage layout.
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
        self.rotary = self._windowed_rotary = Rotary(shape, sequence_length)
        if shape.full_attention_every is not None and shape.sliding_window is not None:
            theta = shape.window_rope_theta or shape.rope_theta
            scaling = shape.rope_scaling if shape.scale_window_rope else None
            windowed = shape.model_copy(update={"rope_scaling": scaling, "rope_theta": theta})
            self._windowed_rotary = Rotary(windowed, sequence_length)
        self.make_mask: Callable[[Tensor | None, Tensor], Tensor | None] = document_mask
        self.gather_head_input: Callable[[Tensor], Tensor] = identity
        self.sequence_shards = self.context_shards = 1
        self.embedding = Embedding(vocab_size, shape.hidden_size, shape.pad_token_id) if has_embedding else None
        numbers = range(shape.num_layers) if layers is None else layers
        self.blocks = nn.ModuleDict({str(number): Block(shape, number) for number in numbers})
        self.norm = make_norm(shape.hidden_size, shape) if has_head else None
        self._is_tied = shape.tie_embeddings and has_embedding and has_head
        self.head: Head | None = None
        if has_head:
            cap = shape.final_logit_softcapping
            self.head = Head(vocab_size, shape.hidden_size, cap, owns_weight=not self._is_tied)

    def forward(
        self,
        x: Tensor,
        targets_BS: Tensor | None = None,
        documents_BS: Tensor | None = None,
        positions_BS: Tensor | None = None,
    ) -> Tensor:
        """Return the logits, [B, S, V], with targets what `Head` makes of them, or without a head the hidden states,
        [B, S, D].

        `x`: token ids, [B, S], or without an embedding hidden states. With tensor parallelism hidden states between
        the layers have 1 / `sequence_shards` of the sequence. With context parallelism all of `x` has 1 /
        `context_shards` of it, but `documents_BS` is complete.
        """
        length = x.shape[1] if self.embedding is not None else x.shape[1] * self.sequence_shards
        if self.embedding is not None:
            x = self.embedding(x)
            if self.shape.scale_embeddings:  # a factor in the precision of the embeddings, as Gemma has it
                x = x * torch.full((), self.shape.hidden_size**0.5, dtype=x.dtype, device=x.device)
        positions = self.layer_positions(positions_BS, length, x)
        mask = chunk_mask = self.make_mask(documents_BS, x)
        size, complete = self.shape.attention_chunk_size, length * self.context_shards
        if size is not None and size < complete:
            chunk_mask = self.make_mask(chunk_numbers(documents_BS, x.shape[0], complete, size, x.device), x)
        for number, block in self.blocks.items():
            x = block(x, positions(int(number)), mask if block.attention.chunk is None else chunk_mask)
        if self.norm is None or self.head is None:
            return x
        tied_weight = self.embedding.weight if self._is_tied and self.embedding is not None else None
        return self.head(self.gather_head_input(self.norm(x)), targets_BS, tied_weight)

    def layer_positions(
        self, positions_BS: Tensor | None, length: int, like: Tensor
    ) -> Callable[[int], LayerPositions]:
        """Return a function that returns what a layer gets of positions, by its number."""
        rope_cache, windowed = (
            rotary.rope_cache(positions_BS, length, like) for rotary in (self.rotary, self._windowed_rotary)
        )
        tuning, factors = self.shape.temperature_tuning, None
        if tuning is not None:
            factors = temperature_factors(tuning, positions_BS, length, like.device)

        def of_layer(layer: int) -> LayerPositions:
            if not self.shape.has_rope(layer):
                return factors
            return rope_cache if self.shape.window_of(layer) is None else windowed

        return of_layer

    def zero_buffers(self) -> None:
        """Set all buffers to zero."""
        for buffer in self.buffers():
            buffer.zero_()


def initial_value(
    name: str,
    shape: tuple[int, ...],
    num_layers: int,
    seed: int,
    offsets: tuple[int, ...] | None = None,
    box: tuple[int, ...] | None = None,
) -> Tensor:
    """Return the initial value of a parameter, or of its part of size `box` at `offsets`, in fp32 on the CPU.

    It is a function of the parameter's name and the seed alone. Weights are normal with a standard deviation of 0.02,
    divided by sqrt(2 layers) for those that write to the residual stream (Radford et al. 2019). Weights of norms are 1,
    their offsets, biases, sinks and `lora_b` are 0.
    """
    offsets, box = offsets or (0,) * len(shape), shape if box is None else box
    if name.endswith(("bias", ".offset", ".sinks", "lora_b")):  # an adapter adds 0 at first
        return torch.zeros(box)
    if len(shape) == 1:
        return torch.ones(box)
    if name.endswith("lora_a"):
        std: float = shape[1] ** -0.5
    else:
        writes_residual = name.endswith(("attention.output.weight", "down.weight", "experts.down"))
        std = INITIAL_STD / (2 * num_layers) ** 0.5 if writes_residual else INITIAL_STD
    return draw_box(f"{seed}/{name}", shape, offsets, box, std)


def initialise(model: Decoder, seed: int) -> None:
    """Fill a complete model with its initial values; `parallel.layout.initial_shard` gives a rank the same numbers."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, tuple(parameter.shape), model.shape.num_layers, seed))
