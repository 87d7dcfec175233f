"""Gather sharded matrices on owner ranks and scatter the results, so that the ranks share the work on full matrices.

Each rank of a group owns some of the matrices. One all-to-all sends the shards of all matrices to their owners, a
second one the results back. A rank sends and receives about as much as its shards, whatever the number of ranks;
all-gathering every matrix would multiply traffic and work by that number.
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
    """Gathers and scatters `params`, [.., R, C] each, of which every rank of `group` has a box of rows and columns.

    Leading dimensions count matrices; all ranks of the group have parts of the same ones. Several ranks may have the
    same box.
    """

    def __init__(self, params: Sequence[ShardedParam], group: dist.ProcessGroup | None, dtype: torch.dtype) -> None:
        """Plan the exchange; a collective. Without a group this rank has all rows and columns. `dtype`: of sent
        data."""
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
        """Return the full [N, R, C] of each parameter that this rank owns. `shards`: of all parameters. A
        collective."""
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
        """Return this rank's part [N, r, c] of every parameter. `full_tensors`: those it owns. A collective."""
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
        """Return the shape of `peer`'s part of a parameter."""
        _, _, rows, columns = self._boxes[peer][index]
        return self._stacks[index][0], rows, columns

    def _all_to_all(self, outgoing: list[list[Tensor]], shapes: list[list[tuple[int, int, int]]]) -> list[list[Tensor]]:
        """Send `outgoing[r]` to rank r. Return the tensors received from each rank, of the given shapes."""
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
    """Return the full shape [N, R, C] of the matrices that this rank has parts of."""
    rows, columns = param.param_layout.shape[-2:]
    return prod(param.param_layout.local_shape[:-2]), rows, columns


def _box(param: ShardedParam) -> Box:
    (row, column), (rows, columns) = param.param_layout.offsets[-2:], param.param_layout.local_shape[-2:]
    return row, column, rows, columns


def _box_of(full_NRC: Tensor, box: Box) -> Tensor:
    row, column, rows, columns = box
    return full_NRC[:, row : row + rows, column : column + columns]


def _work(stack: tuple[int, int, int]) -> int:
    """Return a number proportional to the work of a Newton-Schulz iteration."""
    count, rows, columns = stack
    return count * rows * columns * min(rows, columns)


def _assign_owners(work: Sequence[int], size: int) -> list[int]:
    """Return the owner of each: the heaviest first, to the rank with the least work."""
    owners, loads = [0] * len(work), [0] * size
    for index in sorted(range(len(work)), key=lambda index: -work[index]):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += work[index]
    return owners
