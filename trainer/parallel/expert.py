"""Expert parallelism: each rank has some of the experts, and an all-to-all sends each token's row to its experts and
back.

No row is padded or dropped: the ranks exchange the numbers of rows first, then exactly these rows.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.models.decoder import Decoder
from trainer.models.moe import GroupedExperts, MixtureOfExperts, invert, permute_rows
from trainer.parallel.collectives import all_to_all_rows
from trainer.parallel.mesh import Mesh


def apply_expert_parallelism(model: Decoder, mesh: Mesh) -> None:
    """Run the experts of each mixture on the ranks of the expert axis: expert n on rank n // (N / ranks)."""
    group = mesh.group("expert")
    if group is None:
        return
    for block in model.blocks.values():
        if isinstance(block.mlp, MixtureOfExperts):
            block.mlp.run_experts = ExpertAllToAll(block.mlp.experts, group, mesh.sizes.expert)


class ExpertAllToAll:
    """Computes experts that are sharded over ranks; replaces `MixtureOfExperts.run_experts`."""

    def __init__(self, experts: GroupedExperts, group: dist.ProcessGroup, size: int) -> None:
        self._experts, self._group, self._size = experts, group, size

    @torch.compiler.disable  # how many rows a rank gets is different each time
    def __call__(self, rows_RD: Tensor, counts_N: Tensor) -> Tensor:
        """Return the experts' outputs of `rows_RD`, which are sorted by expert, `counts_N[n]` rows for expert n."""
        theirs_PN = torch.empty_like(counts_N)
        dist.all_to_all_single(theirs_PN, counts_N, group=self._group)
        theirs_PN = theirs_PN.view(self._size, -1)  # rows from rank p for my expert n
        # The collective needs the numbers of rows on the host: the only wait for the device.
        both_2P = torch.stack([counts_N.view(self._size, -1).sum(1), theirs_PN.sum(1)])
        send_counts, receive_counts = both_2P.tolist()
        received_RD = all_to_all_rows(rows_RD, send_counts, receive_counts, self._group)
        # Rows arrive sorted by rank, then expert; the grouped product needs them sorted by expert.
        of_expert_R = torch.arange(theirs_PN.shape[1], device=rows_RD.device).repeat(self._size)
        of_expert_R = of_expert_R.repeat_interleave(theirs_PN.flatten(), output_size=sum(receive_counts))
        order_R = of_expert_R.argsort(stable=True)
        inverse_R = invert(order_R)
        results_RD = self._experts(permute_rows(received_RD, order_R, inverse_R), theirs_PN.sum(0))
        results_RD = permute_rows(results_RD, inverse_R, order_R)
        return all_to_all_rows(results_RD, receive_counts, send_counts, self._group)
