"""Grouped-query attention with rotary positions. The mask is made once per forward pass (`Decoder.make_mask`).

Shape suffixes: B batch, S sequence, D hidden, H heads, K key-value heads, E head size, R rotated elements of a head.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from trainer.contract.models import ModelShape
from trainer.contract.positions import RopeScaling, TemperatureTuning
from trainer.models.attention_kernels import causal_attention
from trainer.models.feed_forward import InputProjection, OutputProjection, apply_linear, apply_linears, identity

RopeCache = tuple[Tensor, Tensor]
LayerPositions: TypeAlias = RopeCache | Tensor | None
"""What a layer gets of positions: cosine and sine, or in layers without rotary positions the factor of each query, [B
or 1, 1, S, 1] in fp32, or None."""
_VARLEN_ASKS_FOR_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""torch 2.11 takes grouped heads without being asked."""


class Attend(Protocol):
    """Attention from queries, keys, values and the mask that `Decoder.make_mask` makes; `sinks_H`: the score of each
    head's sink, None without sinks."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, /, *, sinks_H: Tensor | None
    ) -> Tensor:
        """Return [B, H, S, E]."""
        ...


class Rotary:
    """Cosine and sine of each position, in fp32, computed once per device and not part of checkpoints."""

    def __init__(self, shape: ModelShape, sequence_length: int) -> None:
        positions = torch.arange(sequence_length, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, rotary_frequencies(shape, sequence_length))
        angles_SR = torch.cat([angles, angles], dim=-1)
        cosine_SR, sine_SR = angles_SR.cos(), angles_SR.sin()
        if shape.rope_scaling is not None and shape.rope_scaling.amplitude != 1.0:
            cosine_SR, sine_SR = cosine_SR * shape.rope_scaling.amplitude, sine_SR * shape.rope_scaling.amplitude
        self.sequence_length = sequence_length
        self._cosine_sine = {torch.device("cpu"): (cosine_SR, sine_SR)}

    def rope_cache(self, positions_BS: Tensor | None, length: int, like: Tensor) -> RopeCache:
        """Return (cosine, sine), [B or 1, 1, S, R] each, on the device and in the precision of `like`.

        `positions_BS` None: 0 .. length - 1 in every row.
        """
        if like.device not in self._cosine_sine:
            cosine, sine = self._cosine_sine[torch.device("cpu")]
            self._cosine_sine[like.device] = cosine.to(like.device), sine.to(like.device)
        cosine, sine = self._cosine_sine[like.device]
        if positions_BS is None:
            return cosine[None, None, :length].to(like.dtype), sine[None, None, :length].to(like.dtype)
        return cosine[positions_BS][:, None].to(like.dtype), sine[positions_BS][:, None].to(like.dtype)


def rotary_frequencies(shape: ModelShape, sequence_length: int) -> Tensor:
    """Return the rotation of each pair in radians per position, [R / 2], in fp32 on the CPU."""
    powers = torch.arange(0, shape.rotary_size, 2, dtype=torch.float32, device="cpu") / shape.rotary_size
    frequencies = 1.0 / shape.rope_theta**powers
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "longrope":
        return frequencies / torch.tensor(scaling.pair_factors(sequence_length), dtype=torch.float32, device="cpu")
    if scaling.original_length is None or scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        waves = scaling.original_length * frequencies / (2 * math.pi)  # of each pair in the original length
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = ((waves - low) / (high - low)).clamp(0.0, 1.0) if low < high else (waves > high).float()
    else:
        first, last = _yarn_limits(shape, scaling, scaling.original_length)
        pairs = torch.arange(shape.rotary_size // 2, dtype=torch.float32, device="cpu")
        kept = 1.0 - ((pairs - first) / (last - first)).clamp(0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * frequencies / scaling.factor


def _yarn_limits(shape: ModelShape, scaling: RopeScaling, original_length: int) -> tuple[float, float]:
    """Return the pair up to which nothing is stretched, and that from which all is (Peng et al. 2023, section 3.2): the
    pairs that rotate `beta_fast` and `beta_slow` times in the original length."""
    first, last = (
        shape.rotary_size * math.log(original_length / (2 * math.pi * rotations)) / (2 * math.log(shape.rope_theta))
        for rotations in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, shape.rotary_size - 1)
    return first, last if last != first else last + 0.001  # as `transformers` avoids a division by zero


def apply_rotary_embedding(x_BHSE: Tensor, rope_cache: RopeCache) -> Tensor:
    """Rotate the first R elements by Hugging Face's convention: element i is paired with i + R / 2, not with its
    neighbour."""
    cosine, sine = rope_cache
    if cosine.shape[-1] < x_BHSE.shape[-1]:
        rotated, unchanged = x_BHSE.tensor_split([cosine.shape[-1]], dim=-1)
        return torch.cat([apply_rotary_embedding(rotated, rope_cache), unchanged], dim=-1)
    first, second = x_BHSE.chunk(2, dim=-1)
    return x_BHSE * cosine + torch.cat([-second, first], dim=-1) * sine


def apply_rotary_embedding_to_neighbours(x_BHSR: Tensor, rope_cache: RopeCache) -> Tensor:
    """Rotate elements in pairs of neighbours, as DeepSeek and Llama 4 have them. The result has the first
    elements of all pairs before the second ones: for queries and keys alike, so that their products are the same."""
    return apply_rotary_embedding(torch.cat([x_BHSR[..., ::2], x_BHSR[..., 1::2]], dim=-1), rope_cache)


def document_mask(documents_BS: Tensor | None, like: Tensor) -> Tensor | None:
    """Return the mask that restricts attention to documents, for inputs on the device and in the precision of `like`.

    None if `documents_BS` is None: each row is one document. `document_cu_seqlens` where the variable-length kernel can
    be used. Else [B, 1, S, S], true where query i may see key j: j is not later and in the same document.
    """
    if documents_BS is None:
        return None
    if has_varlen_kernel(like):
        return document_cu_seqlens(documents_BS)
    length = documents_BS.shape[1]
    causal_SS = torch.ones(length, length, dtype=torch.bool, device=documents_BS.device).tril()
    return ((documents_BS[:, :, None] == documents_BS[:, None, :]) & causal_SS)[:, None]


def chunk_numbers(documents_BS: Tensor | None, batch: int, length: int, size: int, device: torch.device) -> Tensor:
    """Return a number for each token, [B, S], the same in each chunk of `size` tokens of a document and different in
    others: to attention, chunks are documents. `documents_BS` None: each row is one document."""
    places_S = torch.arange(length, device=device)
    if documents_BS is None:
        return (places_S // size).expand(batch, -1)
    starts_BS = places_S.where(_is_first_of_document(documents_BS), 0).cummax(dim=1).values
    return starts_BS + (places_S - starts_BS) // size * size


def temperature_factors(
    tuning: TemperatureTuning, positions_BS: Tensor | None, length: int, device: torch.device
) -> Tensor:
    """Return the factor of each query, [B or 1, 1, S, 1]. `positions_BS` None: 0 .. length - 1 in every row."""
    if positions_BS is None:
        positions_BS = torch.arange(length, device=device)[None]
    steps_BS = torch.floor((positions_BS.float() + 1.0) / tuning.floor_scale)
    return (1.0 + tuning.attn_scale * torch.log1p(steps_BS))[:, None, :, None]


def has_varlen_kernel(like: Tensor) -> bool:
    """Return whether torch's variable-length attention can be used: half precision, compute capability 8.0 or
    higher."""
    return like.dtype in (torch.bfloat16, torch.float16) and _is_ampere_or_newer(like.device)


@torch.compiler.assume_constant_result  # a compiled block asks too, where there is a window
def _is_ampere_or_newer(device: torch.device) -> bool:
    return bool(device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0))


def document_cu_seqlens(documents_BS: Tensor) -> Tensor:
    """Return the start of each document in the flattened rows, and the end of the last, [N + 1] in int32.

    N is padded with empty documents to a power of two, so that compiled code sees few shapes. Waits for the device.
    """
    begins_N = _is_first_of_document(documents_BS).flatten().nonzero()[:, 0]
    filled = 1 << (begins_N.shape[0] - 1).bit_length()
    bounds = torch.full((filled + 1,), documents_BS.numel(), dtype=torch.int32, device=documents_BS.device)
    bounds[: begins_N.shape[0]] = begins_N
    return bounds


def _is_first_of_document(documents_BS: Tensor) -> Tensor:
    is_first_BS = torch.ones_like(documents_BS, dtype=torch.bool)
    is_first_BS[:, 1:] = documents_BS[:, 1:] != documents_BS[:, :-1]
    return is_first_BS


def document_numbers(bounds: Tensor, batch: int, length: int) -> Tensor:
    """Return the number of each token's document, [B, S], from what `document_cu_seqlens` returns."""
    tokens = torch.arange(batch * length, dtype=bounds.dtype, device=bounds.device)
    return torch.bucketize(tokens, bounds, right=True).view(batch, length)


def attend(
    query_BHSE: Tensor, key_BKSE: Tensor, value_BKSE: Tensor, mask: Tensor | None, window: int | None = None,
    cap: float | None = None, sinks_H: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return causal attention on one device, [B, H, S, E]. `mask`: as `document_mask` returns it. `window`: tokens that
    a token attends to, itself included; None: all. `cap`: of the scores; `sinks_H`: a score for each head that takes
    part in the softmax. torch's `scaled_dot_product_attention` has neither."""
    grouped, length = query_BHSE.shape[1] != key_BKSE.shape[1], query_BHSE.shape[2]
    if window is not None and window >= length:
        window = None
    if cap is not None or sinks_H is not None:
        if mask is not None and mask.dtype == torch.int32:
            mask = document_numbers(mask, query_BHSE.shape[0], length)
        return causal_attention(query_BHSE, key_BKSE, value_BKSE, sinks_H, mask, window, cap)
    if window is not None and mask is None and has_varlen_kernel(query_BHSE):  # each row is a document
        ends = length * (query_BHSE.shape[0] + 1)
        mask = torch.arange(0, ends, length, dtype=torch.int32, device=query_BHSE.device)
    if mask is not None and mask.dtype == torch.int32:
        return _attend_varlen(query_BHSE, key_BKSE, value_BKSE, mask, window, grouped=grouped)
    if window is not None:
        near_SS = window_mask(length, window, query_BHSE.device)
        mask = near_SS if mask is None else mask & near_SS
    if grouped and query_BHSE.dtype == torch.float32 and query_BHSE.device.type != "cpu":
        # In fp32 CUDA has only the memory-efficient kernel, which takes no grouped heads: torch would compute the
        # scores, [B, H, S, S], by plain products.
        times = query_BHSE.shape[1] // key_BKSE.shape[1]
        key_BKSE, value_BKSE = (x.repeat_interleave(times, dim=1) for x in (key_BKSE, value_BKSE))
        grouped = False
    return functional.scaled_dot_product_attention(
        query_BHSE, key_BKSE, value_BKSE, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    )


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Return [S, S], true where query i may see key j: i - window < j <= i."""
    causal_SS = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return causal_SS.triu(1 - window)


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, window: int | None, *, grouped: bool
) -> Tensor:
    """Attend within documents by torch's variable-length kernel, on a GPU. The GPU kit compares it with the CPU."""
    batch, _, length, size = query.shape
    width = size + -size % 8  # the kernel needs equal head sizes, multiples of 8; zeros do not change the products
    rows = [pad_heads(x, width).transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
    before = -1 if window is None else window - 1
    heads = {"enable_gqa": grouped} if _VARLEN_ASKS_FOR_GROUPS else {}
    mixed = varlen_attn(*rows, bounds, bounds, length, length, scale=size**-0.5, window_size=(before, 0), **heads)
    return mixed[..., : value.shape[-1]].unflatten(0, (batch, length)).transpose(1, 2)


def pad_heads(x_BHSE: Tensor, size: int) -> Tensor:
    """Return the heads with zeros up to `size` elements."""
    missing = size - x_BHSE.shape[-1]
    return functional.pad(x_BHSE, (0, missing)) if missing else x_BHSE


class OffsetNorm(nn.Module):
    """RMSNorm that multiplies by 1 + `offset`, in fp32, as Gemma does."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.empty(width))
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input, in its precision."""
        normalized = functional.rms_norm(x.float(), x.shape[-1:], eps=self._epsilon)
        return (normalized * (1.0 + self.offset.float())).to(x.dtype)


def make_norm(width: int, shape: ModelShape) -> nn.Module:
    """Return a norm of the last dimension."""
    if shape.offset_norms:
        return OffsetNorm(width, shape.norm_epsilon)
    return nn.RMSNorm(width, eps=shape.norm_epsilon)


class WideNorm(nn.Module):
    """RMSNorm of all heads together. With tensor parallelism each rank has the weights of its heads, and `gather` has
    the sums of squares of all ranks, [B, S, ranks]."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.gather: Callable[[Tensor], Tensor] = identity
        self._width, self._epsilon = width, epsilon

    def forward(self, x_BSW: Tensor) -> Tensor:
        """Return the normalized queries or keys, [B, S, heads x E], in their precision."""
        squares_BS1 = self.gather(x_BSW.float().square().sum(-1, keepdim=True)).sum(-1, keepdim=True)
        scaled_BSW = x_BSW.float() * torch.rsqrt(squares_BS1 / self._width + self._epsilon)
        return (scaled_BSW * self.weight).to(x_BSW.dtype)


class AttentionLayer(nn.Module):
    """What all kinds of attention have: queries, keys and values attend, and an output matrix mixes the heads.

    `attend` computes softmax(Q K^T) V; context parallelism and generation replace it. `num_heads` and `num_kv_heads`
    are those of this rank. `project_in` (what has the hidden states as input) and `project_out` are replaced as in
    `FeedForward`.
    """

    output: nn.Module
    output_bias: nn.Parameter | None
    sinks: nn.Parameter | None

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.register_parameter("output_bias", None)
        self.register_parameter("sinks", None)
        self.window, self.chunk = shape.window_of(layer), shape.chunk_of(layer)
        self.cap = shape.attn_logit_softcapping
        self.num_heads, self.num_kv_heads, self.head_size = shape.num_heads, shape.num_kv_heads, shape.head_size
        self.attend: Attend = partial(attend, window=self.window, cap=self.cap)
        self.project_in: InputProjection = apply_linears
        self.project_out: OutputProjection = apply_linear
        scalar = shape.query_pre_attn_scalar or shape.head_size
        self._query_factor = (shape.head_size / scalar) ** 0.5  # the kernels divide by the root of the head size
        if shape.rope_scaling is not None:
            self._query_factor *= shape.rope_scaling.score_factor

    def mix(self, query_BHSE: Tensor, key_BKSE: Tensor, value_BKSE: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention's output without its bias, [B, S, D]. `mask`: as `attend` takes it; None for causal
        attention."""
        if self._query_factor != 1.0:
            query_BHSE = query_BHSE * self._query_factor
        mixed_BHSE = self.attend(query_BHSE, key_BKSE, value_BKSE, mask, sinks_H=self.sinks)
        return self.project_out(mixed_BHSE.transpose(1, 2).flatten(2), self.output)


class Attention(AttentionLayer):
    """Grouped-query attention with rotary positions or, in some layers, none; and norms of queries and keys before or
    behind the rotation."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__(shape, layer)
        width, kv_width = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        self.query = nn.Linear(shape.hidden_size, width, bias=shape.attention_bias)
        self.key = nn.Linear(shape.hidden_size, kv_width, bias=shape.attention_bias)
        self.value = nn.Linear(shape.hidden_size, kv_width, bias=shape.attention_bias)
        self.output = nn.Linear(width, shape.hidden_size, bias=False)
        # A bias of the output, which `Block` adds: once, behind the sum over tensor ranks.
        if shape.attention_output_bias:
            self.output_bias = nn.Parameter(torch.empty(shape.hidden_size))
        if shape.attention_sinks:
            self.sinks = nn.Parameter(torch.empty(shape.num_heads))
        if shape.qk_norm:
            self.query_norm, self.key_norm = make_norm(shape.head_size, shape), make_norm(shape.head_size, shape)
        if shape.wide_qk_norm:
            self.query_wide_norm = WideNorm(width, shape.norm_epsilon)
            self.key_wide_norm = WideNorm(kv_width, shape.norm_epsilon)
        self._normalises, self._normalises_wide = shape.qk_norm, shape.wide_qk_norm
        self._rotate = apply_rotary_embedding_to_neighbours if shape.interleaved_rope else apply_rotary_embedding
        self._l2_epsilon = shape.norm_epsilon if shape.l2_qk_norm else None

    def forward(self, x_BSD: Tensor, positions: LayerPositions, mask: Tensor | None) -> Tensor:
        """Return the attention's output without its bias, [B, S, D]. `mask`: as `attend` takes it; None for causal
        attention."""
        query, key, value = self.project_in(x_BSD, (self.query, self.key, self.value))
        batch, length, _ = query.shape
        if self._normalises_wide:
            query, key = self.query_wide_norm(query), self.key_wide_norm(key)
        query_BSHE = query.view(batch, length, self.num_heads, self.head_size)
        key_BSKE = key.view(batch, length, self.num_kv_heads, self.head_size)
        value_BSKE = value.view(batch, length, self.num_kv_heads, self.head_size)
        if self._normalises:
            query_BSHE, key_BSKE = self.query_norm(query_BSHE), self.key_norm(key_BSKE)
        query_BHSE, key_BKSE = query_BSHE.transpose(1, 2), key_BSKE.transpose(1, 2)
        if isinstance(positions, tuple):
            query_BHSE, key_BKSE = self._rotate(query_BHSE, positions), self._rotate(key_BKSE, positions)
            if self._l2_epsilon is not None:
                query_BHSE, key_BKSE = (self._divide_by_root_mean_square(x) for x in (query_BHSE, key_BKSE))
        elif positions is not None:
            query_BHSE = (query_BHSE * positions).to(query_BHSE.dtype)
        return self.mix(query_BHSE, key_BKSE, value_BSKE.transpose(1, 2), mask)

    def _divide_by_root_mean_square(self, x_BHSE: Tensor) -> Tensor:
        return functional.rms_norm(x_BHSE.float(), x_BHSE.shape[-1:], eps=self._l2_epsilon).to(x_BHSE.dtype)
