"""A rank's state as named boxes of full tensors, which any other mesh can read.

File format: safetensors; its metadata entry `layout` is JSON, name -> [offsets, whole shape]. A tensor without
dimensions (a step counter) is the same on every rank. Older files give the first row alone for the offsets.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

from trainer.optim.step import ShardOptimizer
from trainer.parallel.data import local_tensor
from trainer.parallel.weights import Weights

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
# Offsets and shape of each stored tensor; older files have one number for the offsets.
Layout = dict[str, list[Any]]

RNG_PREFIX, OWN_PREFIX = "rng/", "own/"
"""Prefixes of state that belongs to a rank, not to the model; another mesh does not use it."""


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

    @property
    def box(self) -> list[list[int]]:
        """Return [offsets, shape of the box], as in files."""
        return [list(self.offsets), list(self.tensor.shape)]


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


class Snapshot:
    """A copy on the host of what this rank writes, which later steps do not change. Its memory is used again for the
    next one."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def take(self, shards: Iterable[Shard]) -> dict[str, Shard]:
        """Return the shards that this rank writes, with copies instead of the live tensors."""
        mine = written_shards(shards)
        for name, shard in mine.items():
            copy = self._copies.get(name)
            if copy is None or copy.shape != shard.tensor.shape or copy.dtype != shard.tensor.dtype:
                self._copies[name] = copy = torch.empty(
                    shard.tensor.shape, dtype=shard.tensor.dtype, pin_memory=shard.tensor.is_cuda
                )
            copy.copy_(shard.tensor, non_blocking=True)
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


class EncodedFile:
    """A rank's shards and own tensors as a safetensors file, with the layout in its metadata; its bytes are not joined.

    Format: the size of the header (8 bytes, little endian), the header as JSON, and the tensors as the header orders
    them (https://huggingface.co/docs/safetensors). `size`: of the file, in bytes.
    """

    def __init__(self, shards: Mapping[str, Shard], own: Mapping[str, Tensor]) -> None:
        layout = {name: [list(shard.offsets), list(shard.shape)] for name, shard in shards.items()}
        tensors = {name: shard.tensor for name, shard in shards.items()} | dict(own)
        # The largest elements first: each tensor is then aligned to its own.
        self._tensors = dict(sorted(tensors.items(), key=lambda each: -each[1].element_size()))
        header: dict[str, Any] = {"__metadata__": {"layout": json.dumps(layout)}}
        end = 0
        for name, tensor in self._tensors.items():
            begin, end = end, end + tensor.nbytes
            header[name] = {
                "dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end],
            }  # fmt: skip
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text
        self.size = len(self._header) + end

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes of the file. A tensor on a device is copied when its turn comes."""
        yield memoryview(self._header)
        for tensor in self._tensors.values():
            on_host = tensor.detach().to("cpu").contiguous()
            yield memoryview(on_host.reshape(-1).view(torch.uint8).numpy())


def decode(content: bytes) -> Iterator[Shard]:
    """Yield the shards of one file; state that only one rank has is among them, as full tensors."""
    layout = _layout(content)
    for name, tensor in load_safetensors(content).items():
        offsets, shape = layout.get(name, [[0] * tensor.ndim, list(tensor.shape)])
        if isinstance(offsets, int):
            offsets = [offsets, *[0] * len(shape)][: len(shape)]
        yield Shard(tensor, tuple(offsets), tuple(shape), name)


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


def _layout(content: bytes) -> Layout:
    header_size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_size])
    layout: Layout = json.loads(header["__metadata__"]["layout"])
    return layout
