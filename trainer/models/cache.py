"""Generation: each layer's keys and values of earlier tokens are cached, so that a new token costs one position.

The keeping takes the place of every layer's `attend`, so the decoder's maths is the one that is trained.

Shape suffixes: B rows, N new tokens, W places that a row has room for, H heads, K key-value heads, E head size.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainer.models.decoder import Decoder


class KeyValueCache:
    """Where the tokens that go through the model next stand in their rows: first `begin`, then `step` for each token
    that all rows go on by. `room`: tokens that a row can have."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.end = 0  # one more than the last place of any row

    def begin(self, lengths: list[int], device: torch.device) -> None:
        """Rows of so many tokens, padded behind to the longest. What a row is padded with is never seen: its places
        are taken by the tokens that come before anything may look at them."""
        self._lengths_B = torch.tensor(lengths, device=device)
        places_BN = torch.arange(max(lengths), device=device).expand(len(lengths), -1)
        self._take(places_BN, max(lengths), self._lengths_B - 1)

    def step(self) -> None:
        """Advance every row by one token."""
        self._take(self._lengths_B[:, None], self.end + 1, torch.zeros_like(self._lengths_B))
        self._lengths_B = self._lengths_B + 1

    def _take(self, places_BN: Tensor, end: int, last_B: Tensor) -> None:
        assert end <= self.room, f"{end} tokens, and room for {self.room}"
        self.places_BN, self.end, self._last_B = places_BN, end, last_B
        seen_W = torch.arange(end, device=places_BN.device)
        self.mask = (seen_W <= places_BN[..., None])[:, None]  # [B, 1, N, earlier places]

    def last(self, x_BND: Tensor) -> Tensor:
        """Of each row's last token, [B, 1, D]; in place of a decoder's `enter`, so that only it comes to the head."""
        rows_B = torch.arange(x_BND.shape[0], device=x_BND.device)
        return x_BND[rows_B, self._last_B][:, None]


class LayerCache:
    """One layer's keys and values."""

    def __init__(self, cache: KeyValueCache) -> None:
        self._cache = cache
        self._cached_2BKWE: Tensor | None = None

    def attend(self, query_BHNE: Tensor, key_BKNE: Tensor, value_BKNE: Tensor, _: Tensor | None) -> Tensor:
        """Return the attention of the new tokens over themselves and all earlier ones, [B, H, N, E]."""
        cache = self._cache
        batch, heads, _, size = key_BKNE.shape
        if self._cached_2BKWE is None:
            self._cached_2BKWE = key_BKNE.new_zeros(2, batch, heads, cache.room, size)
        where = cache.places_BN[:, None, :, None].expand_as(key_BKNE)
        for kept, new in zip(self._cached_2BKWE, (key_BKNE, value_BKNE), strict=True):
            kept.scatter_(2, where, new)
        key, value = self._cached_2BKWE[:, :, :, : cache.end]
        grouped = query_BHNE.shape[1] != heads
        return functional.scaled_dot_product_attention(query_BHNE, key, value, attn_mask=cache.mask, enable_gqa=grouped)


@contextmanager
def cached_keys_and_values(stages: Iterable[Decoder], room: int) -> Iterator[KeyValueCache]:
    """Inside, what goes through the stages, without gradients, is remembered, in rows that hold `room` tokens, and the
    head yields [B, 1, V] of what follows each row."""
    cache = KeyValueCache(room)
    with ExitStack() as undone:
        for stage in stages:
            undone.enter_context(replaced(stage, "enter", cache.last))
            for block in stage.blocks.values():
                undone.enter_context(replaced(block.attention, "attend", LayerCache(cache).attend))
        yield cache


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute within the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
