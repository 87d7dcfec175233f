"""The tensors of a micro-batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.data.packing import IGNORED


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of a micro-batch, [b, S] each but for the last.

    `documents_BS` (int32) numbers the packed documents of a row, which do not attend to each other; None: a row is one
    document. `positions_BS` (int64) counts from the start of each document; None: 0 .. S-1. `reference_BA` (fp32) has
    the sum of the log-probabilities of each document by the reference of preference training, for the first A documents
    of a row, where they were computed before.
    """

    tokens_BS: Tensor
    targets_BS: Tensor
    documents_BS: Tensor | None = None
    positions_BS: Tensor | None = None
    reference_BA: Tensor | None = None

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy on `device`, without waiting for it if the memory is pinned."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "MicroBatch":
        """Return a copy in pinned memory."""
        return self.each(lambda tensor: tensor.pin_memory())

    def each(self, change: Callable[[Tensor], Tensor]) -> "MicroBatch":
        """Return the batch with `change` applied to each tensor that is not None."""
        tensors = {name: tensor for name, tensor in vars(self).items() if tensor is not None}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items()})

    def joined(self, other: "MicroBatch") -> "MicroBatch":
        """Return the rows of both batches as one."""
        tensors = {name: tensor for name, tensor in vars(self).items() if tensor is not None}
        return replace(self, **{name: torch.cat([tensor, getattr(other, name)]) for name, tensor in tensors.items()})

    @property
    def counted(self) -> int:
        """Return the number of targets that are not IGNORED (waits for the device)."""
        return int((self.targets_BS != IGNORED).sum())
