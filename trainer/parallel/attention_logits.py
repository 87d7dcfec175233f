"""The largest attention logit of each layer: of a query and a key that it attends to, scaled and, where the model caps
its scores, capped, as it enters the softmax. Sinks are no logits of keys.

It is no bound: a forward pass without gradients hands queries and keys of each layer to a recorder, which multiplies
blocks of queries with the keys that they see, in fp32. The scores of all queries are never in memory together.

Shape suffixes: B batch, H heads, K key-value heads, E head size, S this rank's part of the sequence, W the full one, q
queries of a block, k keys that a block may see.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.data.batch import MicroBatch
from trainer.data.packing import IGNORED
from trainer.models.attention import Attend, AttentionLayer, chunk_numbers
from trainer.models.attention_kernels import ACCELERATOR_BLOCK_BYTES, BLOCK_BYTES
from trainer.models.cache import override_attribute
from trainer.parallel.mesh import Mesh
from trainer.parallel.parallelize import ParallelModel


def largest_attention_logits(model: ParallelModel, batch: MicroBatch, num_layers: int) -> list[float]:
    """Return the largest logit of each layer of the complete model over the first micro-batches of all ranks; a
    collective that waits for the device. `batch`: this rank's, on its device. -inf for a layer that no rank has
    computed; nan if a logit is not finite.

    Rows without any target are padding and do not count. Compiled blocks run without compilation.
    """
    mesh = model.weights.mesh
    largest = torch.full((num_layers,), float("-inf"), device=mesh.device)
    rows = _Rows.of(model, batch)
    with ExitStack() as overrides:
        overrides.enter_context(torch.compiler.set_stance("force_eager"))
        for stage in model.stages:
            for number, block in stage.blocks.items():
                recorder = _Recorder(block.attention, rows, largest[int(number)])
                overrides.enter_context(override_attribute(block.attention, "attend", recorder))
        model.losses([batch])
    # A maximum may drop what is not a number, so that it is summed.
    broken = largest.isnan().float()
    largest = largest.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    if mesh.world_size > 1:
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        dist.all_reduce(broken)
    found: list[float] = largest.where(broken == 0, float("nan")).tolist()
    return found


@dataclass(frozen=True)
class _Rows:
    """The sequences of a micro-batch, and who has which of their tokens. `queries_S`: positions of this rank's tokens;
    `keys_W`: those of all context ranks, in their order; on the CPU. `documents_BW` as `MicroBatch` has it."""

    counted_B: Tensor
    documents_BW: Tensor | None
    queries_S: Tensor
    keys_W: Tensor
    mesh: Mesh

    @classmethod
    def of(cls, model: ParallelModel, batch: MicroBatch) -> "_Rows":
        length, mesh, cpu = batch.tokens_BS.shape[1], model.weights.mesh, torch.device("cpu")
        parts = [model.context.positions_of(rank, length, cpu) for rank in range(mesh.sizes.context)]
        counted_B = (batch.targets_BS != IGNORED).any(1)
        return cls(counted_B, batch.documents_BS, parts[mesh.coordinate("context")], torch.cat(parts), mesh)

    def gather_keys(self, key_BKSE: Tensor) -> Tensor:
        """Return the keys of all context ranks in the order of the sequence, [B, K, W, E]; a collective."""
        group = self.mesh.group("context")
        if group is None:
            return key_BKSE
        parts = [torch.empty_like(key_BKSE, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(parts, key_BKSE.contiguous(), group=group)
        return torch.cat(parts, dim=2)[:, :, self.keys_W.argsort().to(key_BKSE.device)]


class _Recorder:
    """Attends as its layer does, and raises `largest`, a scalar, to the largest logit."""

    def __init__(self, layer: AttentionLayer, rows: _Rows, largest: Tensor) -> None:
        self._attend: Attend = layer.attend
        self._window, self._chunk, self._cap = layer.window, layer.chunk, layer.cap
        self._rows, self._largest = rows, largest

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, /, *, sinks_H: Tensor | None
    ) -> Tensor:
        """Return what the layer's `attend` returns, [B, H, S, E]."""
        found = self._largest_of(query, self._rows.gather_keys(key))
        if self._cap is not None:
            found = self._cap * torch.tanh(found / self._cap)
        self._largest.copy_(torch.maximum(self._largest, found))
        return self._attend(query, key, value, mask, sinks_H=sinks_H)

    def _largest_of(self, query_BHSE: Tensor, key_BKWE: Tensor) -> Tensor:
        """Return the largest logit without its cap."""
        batch, heads, length, size = query_BHSE.shape
        kv_heads, complete = key_BKWE.shape[1], key_BKWE.shape[2]
        documents_BW = self._documents(batch, complete, query_BHSE.device)
        key_BKEW = key_BKWE.float().transpose(2, 3) * size**-0.5
        block_bytes = BLOCK_BYTES if query_BHSE.device.type == "cpu" else ACCELERATOR_BLOCK_BYTES
        block = max(1, block_bytes // (4 * batch * heads * complete))
        largest = query_BHSE.new_full((), float("-inf"), dtype=torch.float32)
        for places_q in torch.arange(length).split(block):
            positions_q = self._rows.queries_S[places_q]
            first, last = int(positions_q[0]), int(positions_q[-1])
            begin = 0 if self._window is None else max(0, first - self._window + 1)
            seen_BqK = self._visible(positions_q, torch.arange(begin, last + 1), documents_BW)
            query_BKGqE = query_BHSE[:, :, places_q[0] : places_q[-1] + 1].float().unflatten(1, (kv_heads, -1))
            scores = torch.matmul(query_BKGqE.flatten(2, 3), key_BKEW[..., begin : last + 1])
            scores_BKGqk = scores.unflatten(2, (heads // kv_heads, -1))
            hidden = ~seen_BqK[:, None, None]
            largest = torch.maximum(largest, scores_BKGqk.masked_fill(hidden, float("-inf")).amax())
        return largest

    def _documents(self, batch: int, length: int, device: torch.device) -> Tensor | None:
        """Return what tokens must have in common to attend, [B, W]: the document, or the chunk of it; None: nothing."""
        documents_BW = self._rows.documents_BW
        if self._chunk is not None and self._chunk < length:
            return chunk_numbers(documents_BW, batch, length, self._chunk, device)
        return documents_BW

    def _visible(self, queries_q: Tensor, keys_k: Tensor, documents_BW: Tensor | None) -> Tensor:
        """Return where a query of a counted row sees a key, [B, q, k]."""
        device = self._rows.counted_B.device
        queries_q, keys_k = queries_q.to(device), keys_k.to(device)
        distance_qk = queries_q[:, None] - keys_k
        seen_qk = distance_qk >= 0
        if self._window is not None:
            seen_qk &= distance_qk < self._window
        seen_Bqk = seen_qk & self._rows.counted_B[:, None, None]
        if documents_BW is not None:
            seen_Bqk &= documents_BW[:, queries_q][:, :, None] == documents_BW[:, keys_k][:, None]
        return seen_Bqk
