"""A rank's state as named boxes of full tensors, which any other mesh can read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from trainer.checkpoint.host_memory import allocate, pin, reserve
from trainer.optim.step import ShardOptimizer
from trainer.parallel.data import local_tensor
from trainer.parallel.weights import Weights

RNG_PREFIX, OWN_PREFIX = "rng/", "own/"
"""Prefixes of state that belongs to a rank, not to the model; another mesh does not use it."""
_ALIGNMENT = 64  # bytes of copies in a snapshot


@dataclass(frozen=True)
class Shard:
    """`tensor`: the box of a tensor of shape `shape` that begins at `offsets`; shares memory with the live state.

    `stored`: the name it has in a checkpoint, the same for the two copies of a tied embedding. `is_mine`: of all ranks
    that have this box, this is the one that writes it.
    """

    tensor: Tensor
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    stored: str
    is_mine: bool = True


def is_own(stored: str) -> bool:
    """Return whether a stored name is that of state that only one rank has."""
    return stored.startswith((RNG_PREFIX, OWN_PREFIX))


def live_shards(weights: Weights, optimizer: ShardOptimizer) -> list[Shard]:
    """Return this rank's trained parameters, optimizer state and router biases, sharing memory with them."""
    mesh, shards = weights.mesh, []
    # The ranks that have the same boxes take turns; of a tied embedding's two copies the head's is never written.
    writes = {
        name: param_layout.replica_ranks[number % len(param_layout.replica_ranks)] == mesh.rank
        and param_layout.is_original(name)
        for number, (name, param_layout) in enumerate(weights.layouts.items())
    }
    tensors = {f"model/{name}": local_tensor(parameter).detach() for name, parameter in weights.trainable.items()}
    for key, tensor in (tensors | optimizer.state_tensors()).items():
        kind, _, name = key.partition("/")
        param_layout = weights.layouts[name]
        box = (param_layout.offsets, param_layout.shape) if tensor.ndim else ((), ())
        shards.append(Shard(tensor, *box, f"{kind}/{param_layout.name}", writes[name]))
    is_first = mesh.coordinate("replicate", "shard", "context", "tensor") == 0
    for name, balance in weights.expert_biases.items():
        shards.append(Shard(balance, (0,), tuple(balance.shape), f"balance/{name}", is_first))
    return shards


def rng_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random number generators."""
    states = {f"{RNG_PREFIX}cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{RNG_PREFIX}cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the states that `rng_states` returned."""
    torch.set_rng_state(states[f"{RNG_PREFIX}cpu"])
    if device.type == "cuda" and f"{RNG_PREFIX}cuda" in states:
        torch.cuda.set_rng_state(states[f"{RNG_PREFIX}cuda"], device)


def written_shards(shards: Iterable[Shard]) -> dict[str, Shard]:
    """Return what this rank writes, by stored name, sharing memory with the live state."""
    return {shard.stored: shard for shard in shards if shard.is_mine}


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


class Snapshot:
    """A copy on the host of what this rank writes, which later steps do not change. Its memory is used again for the
    next one."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def prepare(self, shards: Iterable[Shard]) -> None:
        """Allocate the memory for what this rank writes of these shards, pinned for those on a GPU."""
        tensors = {name: shard.tensor for name, shard in written_shards(shards).items()}
        ends = list(accumulate(-(-each.nbytes // _ALIGNMENT) * _ALIGNMENT for each in tensors.values()))
        memory = reserve(ends[-1] if ends else 0)
        if any(each.is_cuda for each in tensors.values()):
            allocate(memory)
            pin(memory)
        self._copies = {
            name: memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for (name, tensor), begin in zip(tensors.items(), [0, *ends], strict=False)
        }

    def take(self, shards: Iterable[Shard]) -> dict[str, Shard]:
        """Return the shards that this rank writes, with copies instead of the live tensors."""
        mine = written_shards(shards)
        if _forms(self._copies) != _forms({name: shard.tensor for name, shard in mine.items()}):
            self.prepare(mine.values())
        for name, shard in mine.items():
            self._copies[name].copy_(shard.tensor, non_blocking=True)
        if any(shard.tensor.is_cuda for shard in mine.values()):
            torch.cuda.current_stream().synchronize()
        return {name: replace(shard, tensor=self._copies[name]) for name, shard in mine.items()}


def own_states(weights: Weights) -> dict[str, Tensor]:
    """Return a snapshot of the state that only this rank has, such as random states; later steps do not change it."""
    own = {f"{OWN_PREFIX}{name}": tensor.to("cpu", copy=True) for name, tensor in weights.rank_state().items()}
    return own | rng_states(weights.mesh.device)


def set_own_states(states: dict[str, Tensor], weights: Weights) -> None:
    """Restore the state that the same rank of an equal mesh had. If the spec now requests another compression, its
    state restarts."""
    set_rng_states(states, weights.mesh.device)
    for name, tensor in weights.rank_state().items():
        stored = states.get(f"{OWN_PREFIX}{name}")
        if stored is not None and stored.shape == tensor.shape:
            tensor.copy_(stored)


def overlay(target: Shard, stored: Shard) -> int:
    """Copy the overlap of two boxes into the target. Return its number of elements."""
    into, source = target.tensor, stored.tensor
    for dimension in range(len(target.shape)):
        mine, theirs = target.offsets[dimension], stored.offsets[dimension]
        low = max(mine, theirs)
        high = min(mine + target.tensor.shape[dimension], theirs + stored.tensor.shape[dimension])
        if low >= high:
            return 0
        into = into.narrow(dimension, low - mine, high - low)
        source = source.narrow(dimension, low - theirs, high - low)
    into.copy_(source)
    return int(into.numel())
