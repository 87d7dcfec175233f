"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): keys and values are expanded for each head.

Shape suffixes as in `attention`; C compressed keys and values, A these and the rotated key, W all tokens of a row.
"""

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor, nn

from trainer.contract.models import ModelShape
from trainer.models.attention import AttentionLayer, RopeCache, apply_rotary_embedding_to_neighbours

LATENT_NORM_EPSILON = 1e-6
"""That of the norms of compressed vectors in `transformers`, whatever `norm_epsilon` is."""


class LatentAttention(AttentionLayer):
    """Attention with keys and values that are expanded from a compressed vector, and queries from another where
    `q_lora_rank` is set. The last elements of a head are rotated; those of keys are the same for all heads.

    With tensor parallelism each rank has some of the heads, and all of what compresses: like the norms of queries and
    keys, that gets a part of its gradient on each rank, from the heads of the rank.

    Generation sets `remember`, which caches the compressed keys and values of new tokens and returns those of all. A
    single new token attends to them as they are: the matrices that would expand them are applied to its query and to
    the result.
    """

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__(shape, layer)
        assert shape.mla is not None
        self._mla = mla = shape.mla
        self.remember: Callable[[Tensor], list[Tensor]] | None = None
        width, value_width = shape.num_heads * mla.head_size, shape.num_heads * mla.v_head_dim
        if mla.q_lora_rank is None:
            self.query = nn.Linear(shape.hidden_size, width, bias=False)
        else:
            self.query_a = nn.Linear(shape.hidden_size, mla.q_lora_rank, bias=False)
            self.query_a_norm = nn.RMSNorm(mla.q_lora_rank, eps=LATENT_NORM_EPSILON)
            self.query_b = nn.Linear(mla.q_lora_rank, width, bias=False)
        self.key_value_a = nn.Linear(shape.hidden_size, mla.kv_lora_rank + mla.qk_rope_head_dim, bias=False)
        self.key_value_a_norm = nn.RMSNorm(mla.kv_lora_rank, eps=LATENT_NORM_EPSILON)
        expanded = shape.num_heads * mla.qk_nope_head_dim + value_width
        self.key_value_b = nn.Linear(mla.kv_lora_rank, expanded, bias=False)
        self.output = nn.Linear(value_width, shape.hidden_size, bias=False)

    def forward(self, x_BSD: Tensor, rope_cache: RopeCache, mask: Tensor | None) -> Tensor:
        """Return the attention's output, [B, S, D]. `mask`: as `attend` takes it; None for causal attention."""
        mla, heads = self._mla, self.num_heads
        is_direct = mla.q_lora_rank is None
        query, compressed = self.project_in(x_BSD, (self.query if is_direct else self.query_a, self.key_value_a))
        if not is_direct:
            query = self.query_b(self.query_a_norm(query))
        query_BHSE = query.unflatten(-1, (heads, mla.head_size)).transpose(1, 2)
        plain_query, rotated_query = query_BHSE.split([mla.qk_nope_head_dim, mla.qk_rope_head_dim], dim=-1)
        rotated_query = apply_rotary_embedding_to_neighbours(rotated_query, rope_cache)
        latent_BSC, shared_BSR = compressed.split([mla.kv_lora_rank, mla.qk_rope_head_dim], dim=-1)
        latent_BSC = self.key_value_a_norm(latent_BSC)
        rotated_key = apply_rotary_embedding_to_neighbours(shared_BSR[:, None], rope_cache)
        if self.remember is not None:
            (compressed_B1WA,) = self.remember(torch.cat([latent_BSC[:, None], rotated_key], dim=-1))
            if x_BSD.shape[1] == 1:
                return self._mix_compressed(plain_query, rotated_query, compressed_B1WA)
        expanded = self.key_value_b(latent_BSC)
        expanded = expanded.unflatten(-1, (heads, mla.qk_nope_head_dim + mla.v_head_dim)).transpose(1, 2)
        plain_key, value_BHSE = expanded.split([mla.qk_nope_head_dim, mla.v_head_dim], dim=-1)
        query_BHSE, key_BHSE = (
            torch.cat([plain_query, rotated_query], dim=-1),
            torch.cat([plain_key, rotated_key.expand(-1, heads, -1, -1)], dim=-1),
        )
        return self.mix(query_BHSE, key_BHSE, value_BHSE, mask)

    def _mix_compressed(self, plain_query: Tensor, rotated_query: Tensor, compressed_B1WA: Tensor) -> Tensor:
        """Return the output for one token, [B, 1, D]. All heads have the same keys, so they are treated as queries of
        one head."""
        mla = self._mla
        weight = getattr(self.key_value_b, "adapted_weight", self.key_value_b.weight)
        key_HEC, value_HEC = weight.unflatten(0, (self.num_heads, -1)).split([mla.qk_nope_head_dim, mla.v_head_dim], 1)
        query_BH1A = torch.cat([torch.einsum("bhse,hec->bhsc", plain_query, key_HEC), rotated_query], dim=-1)
        factor = self._query_factor * sqrt(query_BH1A.shape[-1] / mla.head_size)  # kernels divide by the wider size
        mixed_B1HC = self.attend(
            query_BH1A.transpose(1, 2) * factor, compressed_B1WA, compressed_B1WA[..., : mla.kv_lora_rank], None,
            sinks_H=None,
        )  # fmt: skip
        mixed_B1HE = torch.einsum("bshc,hec->bshe", mixed_B1HC, value_HEC)
        return self.project_out(mixed_B1HE.flatten(2), self.output)
