"""Whole matrices out of shards, and shards out of wholes, with the work on the wholes shared out among the ranks.

Of the ranks that together hold some matrices, each becomes the owner of some. What the owner of a matrix lacks travels
to it, and its result travels back, each way in one collective for all matrices. So a rank sends and receives about what
it holds of them, whatever the number of ranks; gathering every matrix on every rank would cost that number times as
much, and each rank all of the work.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.optim.sharded_param import ShardedParam

Box = tuple[int, int, int, int]  # first row, first column, rows, columns


class GatherScatter:
    """Of `params`, each [.., R, C] as a whole, of which every rank of `group` holds a box of rows and columns.

    Dimensions before these two count matrices; all ranks of the group hold parts of the same of them. Several ranks may
    hold the same box.
    """

    def __init__(self, params: Sequence[ShardedParam], group: dist.ProcessGroup | None, dtype: torch.dtype) -> None:
        """Plan the exchange; a collective. Without a group this rank has everything and sends nothing; `dtype` is
        what is sent."""
        self._group, self._dtype, self._device = group, dtype, params[0].shard.device
        self._stacks = [_stack_shape(param) for param in params]
        self._size = dist.get_world_size(group) if group is not None else 1
        self._rank = dist.get_rank(group) if group is not None else 0
        self._boxes: list[list[Box]] = [[_box(param) for param in params]] * self._size
        if group is not None:
            dist.all_gather_object(self._boxes, self._boxes[self._rank], group=group)
        self._owners = _assign_owners([_work(stack) for stack in self._stacks], self._size)
        self._owned = [self._of_owner(peer) for peer in range(self._size)]
        self._own_indices = self._owned[self._rank]
        senders = [self._senders(index) for index in range(len(params))]
        self._sent = [[index for index in owned if self._rank in senders[index]] for owned in self._owned]
        self._received = [
            [index for index in self._own_indices if peer in senders[index]] for peer in range(self._size)
        ]

    def gather(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """From this rank's shard of each member to the whole [N, R, C] of each that it owns. A collective."""
        if self._group is None:
            return [shard.view(stack).to(self._dtype) for shard, stack in zip(shards, self._stacks, strict=True)]
        outgoing = [[shards[index] for index in indices] for indices in self._sent]
        shapes = [[self._shape(index, peer) for index in indices] for peer, indices in enumerate(self._received)]
        received = self._all_to_all(outgoing, shapes)
        full_tensors = {
            index: torch.empty(self._stacks[index], dtype=self._dtype, device=self._device)
            for index in self._own_indices
        }
        for peer, (indices, pieces) in enumerate(zip(self._received, received, strict=True)):
            for index, piece in zip(indices, pieces, strict=True):
                _box_of(full_tensors[index], self._boxes[peer][index]).copy_(piece)
        return list(full_tensors.values())

    def scatter(self, full_tensors: Sequence[Tensor]) -> list[Tensor]:
        """From the whole of each member that this rank owns to its part [N, r, c] of every member. A collective."""
        if self._group is None:
            return list(full_tensors)
        outgoing = [
            [_box_of(whole, boxes[index]) for whole, index in zip(full_tensors, self._own_indices, strict=True)]
            for boxes in self._boxes
        ]
        shapes = [[self._shape(index, self._rank) for index in owned] for owned in self._owned]
        pieces = dict(zip(chain(*self._owned), chain(*self._all_to_all(outgoing, shapes)), strict=True))
        return [pieces[index] for index in range(len(self._stacks))]

    def _of_owner(self, peer: int) -> list[int]:
        return [index for index, owner in enumerate(self._owners) if owner == peer]

    def _senders(self, index: int) -> set[int]:
        """Return the ranks that provide the boxes of a parameter, each box once; the owner uses its own box."""
        senders: dict[Box, int] = {self._boxes[self._owners[index]][index]: self._owners[index]}
        for peer, boxes in enumerate(self._boxes):
            senders.setdefault(boxes[index], peer)
        return set(senders.values())

    def _shape(self, index: int, peer: int) -> tuple[int, int, int]:
        """Of what `peer` holds of a member."""
        _, _, rows, columns = self._boxes[peer][index]
        return self._stacks[index][0], rows, columns

    def _all_to_all(self, outgoing: list[list[Tensor]], shapes: list[list[tuple[int, int, int]]]) -> list[list[Tensor]]:
        """For each peer, what it sends: tensors of `shapes`, which it and this rank know beforehand."""
        flat = [tensor.reshape(-1) for tensors in outgoing for tensor in tensors]
        sent = torch.cat(flat).to(self._dtype) if flat else torch.empty(0, dtype=self._dtype, device=self._device)
        sizes = [[prod(shape) for shape in each] for each in shapes]
        received = torch.empty(sum(map(sum, sizes)), dtype=self._dtype, device=self._device)
        dist.all_to_all_single(
            received, sent, [sum(each) for each in sizes],
            [sum(tensor.numel() for tensor in tensors) for tensors in outgoing], group=self._group,
        )  # fmt: skip
        pieces = []
        for block, peer_sizes, peer_shapes in zip(
            received.split([sum(each) for each in sizes]), sizes, shapes, strict=True
        ):
            pieces.append([part.view(shape) for part, shape in zip(block.split(peer_sizes), peer_shapes, strict=True)])
        return pieces


def _stack_shape(param: ShardedParam) -> tuple[int, int, int]:
    """[N, R, C] of the matrices that this rank has parts of, whole."""
    rows, columns = param.param_layout.shape[-2:]
    return prod(param.param_layout.local_shape[:-2]), rows, columns


def _box(param: ShardedParam) -> Box:
    (row, column), (rows, columns) = param.param_layout.offsets[-2:], param.param_layout.local_shape[-2:]
    return row, column, rows, columns


def _box_of(full_NRC: Tensor, box: Box) -> Tensor:
    row, column, rows, columns = box
    return full_NRC[:, row : row + rows, column : column + columns]


def _work(stack: tuple[int, int, int]) -> int:
    """Of an iteration that squares the shorter side, in proportion."""
    count, rows, columns = stack
    return count * rows * columns * min(rows, columns)


def _assign_owners(work: Sequence[int], size: int) -> list[int]:
    """Return the owner of each: the heaviest first, to the rank with the least work."""
    owners, loads = [0] * len(work), [0] * size
    for index in sorted(range(len(work)), key=lambda index: -work[index]):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += work[index]
    return owners
