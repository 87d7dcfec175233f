"""Silent corruption of parameters: ranks that have the same parameters compare checksums of them.

A bit that flips in a parameter, in its optimizer state, or in a gradient after it was summed, makes one replica differ
from then on, and no loss shows it. One that flips before the sum is in all replicas alike, which this does not find.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.parallel.data import local_tensor
from trainer.parallel.weights import Weights

CHECK_STEPS = 16
"""Steps between two checks; the parameters are also checked where a checkpoint is due by its number of steps."""
_VALUES = 2**24
"""Different checksums: each is exact in fp32, in which the statistics of steps are summed."""


@dataclass(frozen=True)
class Difference:
    """Replicas of the same parameters that differ. `ranks`: those that differ from the majority, all of them if there
    is none. `replicas`: all ranks that should have the same."""

    ranks: list[int]
    replicas: tuple[int, ...]


class ReplicaCheck:
    """Compares what this rank shares with most others. `replicas`: the ranks that have it, itself alone if none do."""

    def __init__(self, weights: Weights) -> None:
        sizes: Counter[tuple[int, ...]] = Counter()
        parameters: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for name, parameter in weights.trainable.items():
            replicas = weights.layouts[name].replica_ranks
            local = local_tensor(parameter).detach()
            parameters[replicas].append(local)
            sizes[replicas] += local.numel() if len(replicas) > 1 else 0
        self._rank = weights.mesh.rank
        self.replicas = max(sizes, key=lambda each: (sizes[each], each), default=(self._rank,))
        self._parameters = parameters[self.replicas] if len(self.replicas) > 1 else []
        self._differed = False

    def is_due(self, step: int, every_steps: int) -> bool:
        """Return whether the parameters are checked before the update of `step` (from 0). `every_steps`: of the
        checkpoints."""
        return bool(self._parameters) and step > 0 and (step % CHECK_STEPS == 0 or step % every_steps == 0)

    def checksum(self) -> Tensor:
        """Return a number from 1 to 2^24 that depends on each bit of the parameters; a scalar in fp32 on their device.

        The bits of fp32 numbers are added as integers, so the order does not matter.
        """
        sums = [parameter.reshape(-1).view(torch.int32).sum(dtype=torch.int64) for parameter in self._parameters]
        total = torch.stack(sums).sum()
        return (((total ^ (total >> 24) ^ (total >> 48)) & (_VALUES - 1)) + 1).float()

    def find_difference(self, checksums: tuple[float, ...]) -> Difference | None:
        """Compare the checksums of all ranks, 0 where the step had no check. Return the difference between this rank's
        replicas when it is first seen, on the first of them."""
        mine = {rank: checksums[rank] for rank in self.replicas}
        if not all(mine.values()):
            return None
        common, count = Counter(mine.values()).most_common(1)[0]
        differs = count < len(mine)
        is_new, self._differed = differs and not self._differed, differs
        if not is_new or self._rank != self.replicas[0]:
            return None
        is_majority = 2 * count > len(mine)
        odd = [rank for rank, checksum in mine.items() if checksum != common] if is_majority else list(mine)
        return Difference(odd, self.replicas)
