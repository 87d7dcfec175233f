"""Silent corruption of parameters: ranks that have the same parameters compare checksums of them.

A bit that flips in a parameter, in its optimizer state, or in a gradient after it was summed, makes one replica differ
from then on, and no loss shows it. The run goes back to the newest state that was compared. A bit that flips before the
sum is in all replicas alike, which this does not find (`suspicion.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.parallel.data import local_tensor
from trainer.parallel.weights import Weights

CHECK_STEPS = 16
"""Most steps between two checks; the parameters are also checked after each copy and before each checkpoint."""
RECURRENCE_STEPS = 64
"""Where replicas differ again so few steps after they did, their hardware rounds differently, or has a lasting fault
that a restart does not repair: then the run continues."""
_VALUES = 2**24
"""Different checksums: each is exact in fp32, in which the statistics of steps are summed."""


@dataclass(frozen=True)
class Difference:
    """Replicas of the same parameters that differ. `ranks`: those that differ from the majority, all of them if there
    is none. `replicas`: all ranks that should have the same."""

    step: int
    ranks: list[int]
    replicas: tuple[int, ...]

    def __str__(self) -> str:
        """Return what differs, as a sentence without a full stop."""
        others = [rank for rank in self.replicas if rank not in self.ranks]
        if not others:
            return f"the parameters of ranks {_list(self.ranks)} differ after step {self.step}: one has wrong values"
        ranks = f"rank {_list(self.ranks)} has" if len(self.ranks) == 1 else f"ranks {_list(self.ranks)} have"
        return f"{ranks} other parameters after step {self.step} than ranks {_list(others)}: wrong values"


class ReplicaCheck:
    """Compares what this rank shares with most others. `replicas`: the ranks that have it, itself alone if none do."""

    def __init__(self, weights: Weights, corrupted: tuple[int, int] | None = None) -> None:
        """`corrupted`: steps of the last state in which they differed, and the restart count of its workers."""
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
        self._corrupted_step = -1 if corrupted is None else corrupted[0]

    def is_due(self, step: int, copied_step: int) -> bool:
        """Return whether the parameters are checked before the update of `step` (from 0). `copied_step`: of the
        newest copy."""
        is_due = step % CHECK_STEPS == 0 or step in (copied_step, self._corrupted_step)
        return bool(self._parameters) and step > 0 and is_due

    def checksum(self) -> Tensor:
        """Return a number from 1 to 2^24 that depends on each bit of the parameters; a scalar in fp32 on their device.

        The bits of pairs of fp32 numbers are added as integers of 64 bits, which takes a tenth of the time that
        converting each to one does. 0 without replicas.
        """
        if not self._parameters:
            return torch.zeros(())
        total = torch.stack([_sum_of_bits(parameter) for parameter in self._parameters]).sum()
        return (((total ^ (total >> 24) ^ (total >> 48)) & (_VALUES - 1)) + 1).float()

    def find_difference(self, step: int, checksums: Sequence[float]) -> Difference | None:
        """Compare the checksums of all ranks after `step` steps, 0 where there was no check. Return the difference
        between this rank's replicas when it is first seen."""
        mine = {rank: checksums[rank] for rank in self.replicas}
        if not all(mine.values()):
            return None
        common, count = Counter(mine.values()).most_common(1)[0]
        differs = count < len(mine)
        is_new, self._differed = differs and not self._differed, differs
        if not is_new:
            return None
        is_majority = 2 * count > len(mine)
        odd = [rank for rank, checksum in mine.items() if checksum != common] if is_majority else list(mine)
        return Difference(step, odd, self.replicas)

    def is_recurrence(self, difference: Difference) -> bool:
        """Return whether a restart has not repaired it."""
        return self._corrupted_step >= 0 and difference.step <= self._corrupted_step + RECURRENCE_STEPS


def _sum_of_bits(values: Tensor) -> Tensor:
    """Return the sum, modulo 2^64, of the bits of each pair of fp32 numbers and of the last one without a partner."""
    flat = values.reshape(-1)
    flat = flat if flat.storage_offset() % 2 == 0 else flat.clone()  # a view of 8 bytes begins at a multiple of them
    pairs, rest = flat[: flat.numel() // 2 * 2], flat[flat.numel() // 2 * 2 :]
    return pairs.view(torch.int64).sum() + rest.view(torch.int32).sum(dtype=torch.int64)


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
