"""The whole model on the first rank, parameter by parameter, from wherever its parts lie."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.parallel.data import local_tensor
from trainer.parallel.weights import Weights


def gather_full_tensors(
    weights: Weights,
    value: Callable[[nn.Parameter], Tensor] = lambda parameter: parameter.detach(),
    wanted: Callable[[str], bool] = lambda name: True,
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor in fp32) on the first rank; a collective that every rank must iterate to its end,
    stage by stage, the balance of experts among them. One tensor is whole at a time.

    `value` gives what is gathered of each parameter, of the parameter's own shape: itself, or its gradient; `wanted`
    identifies by name which.
    """
    mesh = weights.mesh
    pipeline = mesh.peers("pipeline")
    is_first_of_stage = mesh.coordinate("replicate", "shard", "context", "tensor") == 0
    mine = _full_tensors_of_stage(weights, value, wanted)
    if len(pipeline) == 1 or not is_first_of_stage:
        for name, tensor in mine:
            if mesh.rank == 0:
                yield name, tensor
        return
    group = mesh.group("pipeline")
    if mesh.rank == pipeline[0]:
        yield from mine
        for rank in pipeline[1:]:
            for name, shape in _received_names(rank, group):
                tensor = torch.empty(shape, device=mesh.device)
                dist.recv(tensor, src=rank, group=group)
                yield name, tensor
        return
    names = [(name, tuple(weights.layouts[name].shape)) for name in _names(weights, wanted)]
    names += [(name, tuple(balance.shape)) for name, balance in weights.balances.items() if wanted(name)]
    dist.send_object_list([names], dst=pipeline[0], group=group)
    for _, tensor in mine:
        dist.send(tensor.contiguous(), dst=pipeline[0], group=group)


def _names(weights: Weights, wanted: Callable[[str], bool]) -> list[str]:
    return [name for name in weights.every if weights.layouts[name].is_original(name) and wanted(name)]


def _full_tensors_of_stage(
    weights: Weights, value: Callable[[nn.Parameter], Tensor], wanted: Callable[[str], bool]
) -> Iterator[tuple[str, Tensor]]:
    for name in _names(weights, wanted):
        yield name, weights.layouts[name].gather(local_tensor(value(weights.every[name]))).float()
    yield from ((name, balance) for name, balance in weights.balances.items() if wanted(name))


def _received_names(rank: int, group: dist.ProcessGroup | None) -> list[tuple[str, tuple[int, ...]]]:
    names: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    dist.recv_object_list(names, src=rank, group=group)
    return names[0]
