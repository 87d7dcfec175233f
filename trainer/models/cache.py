"""The key-value cache of text generation: a new token is computed from its own position and the cached keys and values.

The cache replaces `attend` of every layer, so generation runs the decoder that is trained. Layers with latent attention
have their compressed keys and values cached.

Shape suffixes: B rows, N new tokens, W positions of a row, H heads, K key-value heads, E head size.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from trainer.models.attention import AttentionLayer
from trainer.models.attention_kernels import add_sinks, partial_attention
from trainer.models.decoder import Decoder
from trainer.models.latent_attention import LatentAttention

Limits: TypeAlias = tuple[int | None, int | None]
"""The window and the size of chunks of a layer."""


class KeyValueCache:
    """The positions of the tokens that the model computes next; `LayerCache` has the keys and values.

    Call `prefill` before the forward pass over the prompts, and `step` before that over each further token.
    `max_tokens`: tokens of a row, at most. `limits`: those of the layers: (window: how many tokens a token attends to,
    itself included; size of chunks), None for no limit. `masks`: [B, 1, N, W] for each of them.
    """

    def __init__(self, max_tokens: int, limits: set[Limits]) -> None:
        self.max_tokens, self._limits = max_tokens, limits
        self.end = 0  # 1 + the last position of any row

    def prefill(self, lengths: list[int], device: torch.device) -> None:
        """Begin rows of `lengths` tokens, padded at the end to the longest.

        No token attends to padding: each row's next tokens overwrite its keys and values first.
        """
        self._lengths_B = torch.tensor(lengths, device=device)
        positions_BN = torch.arange(max(lengths), device=device).expand(len(lengths), -1)
        self._set_positions(positions_BN, max(lengths), self._lengths_B - 1)

    def step(self) -> None:
        """Advance every row by one token."""
        self._set_positions(self._lengths_B[:, None], self.end + 1, torch.zeros_like(self._lengths_B))
        self._lengths_B = self._lengths_B + 1

    def _set_positions(self, positions_BN: Tensor, end: int, last_B: Tensor) -> None:
        assert end <= self.max_tokens, f"{end} tokens exceed the {self.max_tokens} of the cache"
        self.positions_BN, self.end, self._last_B = positions_BN, end, last_B
        key_positions_W = torch.arange(end, device=positions_BN.device)
        causal_BNW = key_positions_W <= positions_BN[..., None]
        self.masks: dict[Limits, Tensor] = {}
        for window, chunk in self._limits:
            mask_BNW = causal_BNW
            if window is not None:
                mask_BNW = mask_BNW & (key_positions_W > positions_BN[..., None] - window)
            if chunk is not None:
                mask_BNW = mask_BNW & (key_positions_W // chunk == positions_BN[..., None] // chunk)
            self.masks[window, chunk] = mask_BNW[:, None]

    def select_last(self, x_BND: Tensor) -> Tensor:
        """Return the hidden state of each row's last token, [B, 1, D]. Replaces `Decoder.gather_head_input`."""
        rows_B = torch.arange(x_BND.shape[0], device=x_BND.device)
        return x_BND[rows_B, self._last_B][:, None]


def _no_mask(_: Tensor | None, __: Tensor) -> Tensor | None:
    return None


class LayerCache:
    """One layer's keys and values, or what they are computed from."""

    def __init__(self, cache: KeyValueCache, attention: AttentionLayer) -> None:
        self._cache, self._limits, self._cap = cache, (attention.window, attention.chunk), attention.cap
        self._cached_BKWE: list[Tensor] = []  # keys and values, which may differ in size

    def attend(
        self, query_BHNE: Tensor, key_BKNE: Tensor, value_BKNE: Tensor, _: Tensor | None, *, sinks_H: Tensor | None
    ) -> Tensor:
        """Return the attention of the new tokens over themselves and all earlier ones, [B, H, N, E]."""
        key_BKWE, value_BKWE = self.remember(key_BKNE, value_BKNE)
        return self.attend_to(query_BHNE, key_BKWE, value_BKWE, sinks_H=sinks_H)

    def attend_to(
        self, query_BHNE: Tensor, key_BKWE: Tensor, value_BKWE: Tensor, _: Tensor | None = None, *,
        sinks_H: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Return the attention of the new tokens over the given keys and values of all of them."""
        grouped, mask = query_BHNE.shape[1] != key_BKWE.shape[1], self._cache.masks[self._limits]
        if self._cap is not None or sinks_H is not None:
            mixed, log_sum = partial_attention(query_BHNE, key_BKWE, value_BKWE, mask, causal=False, cap=self._cap)
            return add_sinks(mixed, log_sum, sinks_H)[0]
        return functional.scaled_dot_product_attention(
            query_BHNE, key_BKWE, value_BKWE, attn_mask=mask, enable_gqa=grouped
        )

    def remember(self, *new_BKNE: Tensor) -> list[Tensor]:
        """Store what belongs to the new tokens, and return what belongs to all of them, [B, K, W, E] each."""
        cache = self._cache
        if not self._cached_BKWE:
            self._cached_BKWE = [new.new_zeros(*new.shape[:2], cache.max_tokens, new.shape[3]) for new in new_BKNE]
        for cached, new in zip(self._cached_BKWE, new_BKNE, strict=True):
            cached.scatter_(2, cache.positions_BN[:, None, :, None].expand_as(new), new)
        return [cached[:, :, : cache.end] for cached in self._cached_BKWE]


@contextmanager
def use_kv_cache(stages: Iterable[Decoder], max_tokens: int) -> Iterator[KeyValueCache]:
    """Within the context, cache the keys and values of all tokens that the stages compute, at most `max_tokens` a row.

    The head then returns the logits after each row's last token, [B, 1, V]. Run the stages without gradients.
    """
    stages = list(stages)
    attentions = [block.attention for stage in stages for block in stage.blocks.values()]
    cache = KeyValueCache(max_tokens, {(attention.window, attention.chunk) for attention in attentions})
    with ExitStack() as overrides:
        for stage in stages:
            overrides.enter_context(override_attribute(stage, "gather_head_input", cache.select_last))
            overrides.enter_context(override_attribute(stage, "make_mask", _no_mask))  # the cache has its own
        for attention in attentions:
            layer = LayerCache(cache, attention)
            if isinstance(attention, LatentAttention):
                overrides.enter_context(override_attribute(attention, "remember", layer.remember))
                overrides.enter_context(override_attribute(attention, "attend", layer.attend_to))
            else:
                overrides.enter_context(override_attribute(attention, "attend", layer.attend))
        yield cache


@contextmanager
def override_attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute to another value within the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
