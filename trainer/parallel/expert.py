"""Expert parallelism: each rank has some of the experts, and rows travel to theirs and back.

Nothing is padded or dropped: the numbers of rows are exchanged first, then exactly these rows.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.models.decoder import Decoder
from trainer.models.moe import GroupedExperts, MixtureOfExperts
from trainer.parallel.collectives import exchange_rows
from trainer.parallel.mesh import Mesh


def apply_expert_parallelism(model: Decoder, mesh: Mesh) -> None:
    """Expert n lives on rank n // (N / ranks) of the expert axis."""
    group = mesh.group("expert")
    if group is None:
        return
    for block in model.blocks.values():
        if isinstance(block.mlp, MixtureOfExperts):
            block.mlp.run_experts = ExpertExchange(block.mlp.experts, group, mesh.sizes.expert)


class ExpertExchange:
    """Computes experts that are divided over ranks: sends rows to their experts and the results back."""

    def __init__(self, experts: GroupedExperts, group: dist.ProcessGroup, size: int) -> None:
        self._experts, self._group, self._size = experts, group, size

    def __call__(self, rows_RD: Tensor, counts_N: Tensor) -> Tensor:
        """Rows in the order of their experts, `counts_N` of each, to results in the same order."""
        theirs_PN = torch.empty_like(counts_N)
        dist.all_to_all_single(theirs_PN, counts_N, group=self._group)
        theirs_PN = theirs_PN.view(self._size, -1)  # rows from rank p for my expert n
        send_counts = counts_N.view(self._size, -1).sum(1).tolist()
        receive_counts = theirs_PN.sum(1).tolist()
        received_RD = exchange_rows(rows_RD, send_counts, receive_counts, self._group)
        # They came by rank, then expert; the experts want them by expert, then rank.
        of_expert_R = torch.arange(theirs_PN.shape[1], device=rows_RD.device).repeat(self._size)
        of_expert_R = of_expert_R.repeat_interleave(theirs_PN.flatten())
        order_R = of_expert_R.argsort(stable=True)
        results_RD = self._experts(received_RD[order_R], theirs_PN.sum(0))
        return exchange_rows(results_RD[order_R.argsort()], receive_counts, send_counts, self._group)
