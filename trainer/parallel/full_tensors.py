"""Gather complete parameters, one at a time: on the ranks of their pipeline stage, or all on the first rank."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.parallel.data import local_tensor
from trainer.parallel.weights import Weights


def gather_full_tensors(
    weights: Weights,
    value: Callable[[nn.Parameter], Tensor] = lambda parameter: parameter.detach(),
    select: Callable[[str], bool] = lambda name: True,
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor in fp32) on the first rank, stage by stage: parameters, then expert biases of the stage.

    Collective: every rank must exhaust the iterator. One tensor is gathered at a time, and every rank of its stage
    holds the full copy. `value`: the tensor to gather for a parameter, in its shape, such as its gradient. `select`:
    predicate on the name of a parameter or bias.
    """
    mesh = weights.mesh
    pipeline = mesh.peers("pipeline")
    is_first_of_stage = mesh.coordinate("replicate", "shard", "context", "tensor") == 0
    stage_tensors = gather_stage_tensors(weights, value, select)
    if len(pipeline) == 1 or not is_first_of_stage:
        for name, tensor in stage_tensors:
            if mesh.rank == 0:
                yield name, tensor
        return
    group = mesh.group("pipeline")
    if mesh.rank == pipeline[0]:
        yield from stage_tensors
        for rank in pipeline[1:]:
            for name, shape in _receive_names_and_shapes(rank, group):
                tensor = torch.empty(shape, device=mesh.device)
                dist.recv(tensor, src=rank, group=group)
                yield name, tensor
        return
    dist.send_object_list([stage_shapes(weights, select)], dst=pipeline[0], group=group)
    for _, tensor in stage_tensors:
        dist.send(tensor.contiguous(), dst=pipeline[0], group=group)


def stage_shapes(
    weights: Weights, select: Callable[[str], bool] = lambda name: True
) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, full shape) of what `gather_stage_tensors` yields, in its order."""
    names = [(name, tuple(weights.layouts[name].shape)) for name in _names(weights, select)]
    return names + [(name, tuple(bias.shape)) for name, bias in weights.expert_biases.items() if select(name)]


def _names(weights: Weights, select: Callable[[str], bool]) -> list[str]:
    return [name for name, place in weights.layouts.items() if place.is_original(name) and select(name)]


def gather_stage_tensors(
    weights: Weights,
    value: Callable[[nn.Parameter], Tensor] = lambda parameter: parameter.detach(),
    select: Callable[[str], bool] = lambda name: True,
    read_base: Callable[[str, tuple[int, ...]], Tensor] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """As `gather_full_tensors`, but yield what this rank's stages have, on every rank of them.

    A matrix in 4 bits is dequantized, or read by `read_base` from its name and shape.
    """
    for name in _names(weights, select):
        place, quantized = weights.layouts[name], weights.quantized.get(name)
        if quantized is None:
            full = place.gather(local_tensor(value(weights.all_params[name])))
        elif read_base is None:
            full = place.gather(quantized.dequantize())
        else:
            full = read_base(name, place.shape).to(weights.mesh.device)
        yield name, full.float()
    yield from ((name, bias) for name, bias in weights.expert_biases.items() if select(name))


def _receive_names_and_shapes(rank: int, group: dist.ProcessGroup | None) -> list[tuple[str, tuple[int, ...]]]:
    received: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    dist.recv_object_list(received, src=rank, group=group)
    return received[0]
