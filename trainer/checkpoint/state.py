"""A rank's state as named row ranges of whole tensors, so that any other number of ranks can read it.

File format: safetensors; its metadata entry `layout` is JSON, name -> [first row, whole shape]. A tensor
without rows (a step counter) is the same on every rank.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from trainer.optim.step import ShardOptimizer
from trainer.parallel.data import local_tensor, row_range
from trainer.parallel.mesh import Mesh

RNG_PREFIX = "rng/"


@dataclass(frozen=True)
class Shard:
    """`tensor`: rows from `start` on of a tensor of shape `shape`; shares memory with the live state."""

    tensor: Tensor
    start: int
    shape: tuple[int, ...]


def live_shards(optimizer: ShardOptimizer, mesh: Mesh) -> dict[str, Shard]:
    """Parameters, moments and step counters of this rank."""
    shards = {}
    moments = optimizer.state_tensors()
    for name, parameter in optimizer.named_parameters():
        start, _ = row_range(parameter, mesh)
        shape = tuple(parameter.shape)
        shards[f"model/{name}"] = Shard(local_tensor(parameter).detach(), start, shape)
        for moment in ("exp_avg", "exp_avg_sq"):
            shards[f"{moment}/{name}"] = Shard(moments[f"{moment}/{name}"], start, shape)
        shards[f"step/{name}"] = Shard(moments[f"step/{name}"], 0, ())
    return shards


def rng_states(device: torch.device) -> dict[str, Tensor]:
    states = {f"{RNG_PREFIX}cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{RNG_PREFIX}cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_states(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[f"{RNG_PREFIX}cpu"])
    if device.type == "cuda" and f"{RNG_PREFIX}cuda" in states:
        torch.cuda.set_rng_state(states[f"{RNG_PREFIX}cuda"], device)


def copy_to_host(shards: dict[str, Shard]) -> dict[str, Shard]:
    """A snapshot that further steps do not touch."""
    return {name: Shard(shard.tensor.to("cpu", copy=True), shard.start, shard.shape) for name, shard in shards.items()}


def encode(shards: dict[str, Shard], rng: dict[str, Tensor]) -> bytes:
    layout = {name: [shard.start, list(shard.shape)] for name, shard in shards.items()}
    tensors = {name: shard.tensor.contiguous() for name, shard in shards.items()} | rng
    return save_safetensors(tensors, metadata={"layout": json.dumps(layout)})


def decode(content: bytes) -> Iterator[tuple[str, Shard]]:
    """Stored shards of one file, the random states among them (as whole tensors)."""
    layout = _layout(content)
    for name, tensor in load_safetensors(content).items():
        start, shape = layout.get(name, [0, list(tensor.shape)])
        yield name, Shard(tensor, start, tuple(shape))


def overlay(target: Shard, stored: Shard) -> int:
    """Copy the rows that both have into the target; returns how many elements that were."""
    if not target.shape:
        target.tensor.copy_(stored.tensor)
        return 1
    low = max(target.start, stored.start)
    high = min(target.start + target.tensor.shape[0], stored.start + stored.tensor.shape[0])
    if low >= high:
        return 0
    rows = target.tensor[low - target.start : high - target.start]
    rows.copy_(stored.tensor[low - stored.start : high - stored.start])
    return rows.numel()


def _layout(content: bytes) -> dict[str, list]:
    header_size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_size])
    return json.loads(header["__metadata__"]["layout"])
