"""Compressed sums over replicas: near the sum, the same on all of them, nothing lost for good, each byte counted."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.ranks import RankPool
from trainer.contract.optimisation import CompressionSpec
from trainer.parallel.compression import make_compressor
from trainer.parallel.quantisation import BLOCK, MAX_VALUE, dequantise, packed_size, quantise

SHAPES = {
    "matrix": (96, 40),
    "tall": (700, 24),
    "norm": (33,),
    "experts": (3, 48, 40),
    "thin": (50, 2),
    "embedding.weight": (60, 40),
}
COMPRESSED = [{"kind": "powersgd", "rank": 4}, {"kind": "int8"}, {"kind": "fp8"}]
MEASUREMENTS = 3
BYTES_RECEIVED = 128  # offset in Linux's struct tcp_info


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(3) as pool:
        yield pool


def gradients(rank: int, step: int) -> list[torch.Tensor]:
    """What changes with the step is small beside what stays, as between neighbouring steps of a training."""
    steady, moving = torch.Generator().manual_seed(rank), torch.Generator().manual_seed(1000 + 100 * step + rank)
    return [
        torch.randn(shape, generator=steady) + 0.1 * torch.randn(shape, generator=moving) for shape in SHAPES.values()
    ]


def true_sum(world_size: int, step: int) -> list[np.ndarray]:
    each = [gradients(rank, step) for rank in range(world_size)]
    return [torch.stack(tensors).double().sum(dim=0).numpy() for tensors in zip(*each, strict=True)]


def reduce_on_rank(mesh: Any, spec: dict[str, Any], steps: int, poison: tuple[int, float] | None = None) -> list[dict]:
    """Of each step the sums, the state after it, and the bytes; rank 1 has the poison in one step."""
    import torch.distributed as dist

    compressor = make_compressor(CompressionSpec(**spec), SHAPES, dist.group.WORLD, mesh.device)
    found = []
    for step in range(steps):
        tensors = gradients(mesh.rank, step)
        if poison is not None and step == poison[0] and mesh.rank == 1:
            tensors[0][5, 5] = poison[1]
        compressor.all_reduce(tensors)
        sent = compressor.commit(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())
        state = {name: tensor.numpy().copy() for name, tensor in compressor.state_tensors().items()}
        found.append({"sums": [tensor.numpy() for tensor in tensors], "state": state, "bytes": vars(sent)})
    return found


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("spec", "tolerance"), [({"kind": "none"}, 1e-6), ({"kind": "int8"}, 0.01), ({"kind": "fp8"}, 0.04)]
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_sum_in_bytes_is_near_the_sum(ranks: RankPool, spec: dict, tolerance: float, world_size: int) -> None:
    (only,) = ranks.run(world_size, reduce_on_rank, spec, 1)[0]
    for found, expected in zip(only["sums"], true_sum(world_size, 0), strict=True):
        assert error(found, expected) < tolerance


def low_rank_on_rank(mesh: Any, rank_of_sum: int) -> list[float]:
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(60, rank_of_sum, generator=generator) @ torch.randn(rank_of_sum, 40, generator=generator)
    spec = CompressionSpec(kind="powersgd", rank=4)
    compressor = make_compressor(spec, {"matrix": whole.shape}, dist.group.WORLD, mesh.device)
    errors = []
    for _ in range(4):
        tensor = whole / mesh.world_size
        compressor.all_reduce([tensor])
        compressor.commit(torch.tensor(True))
        errors.append(error(tensor.numpy(), whole.numpy()))
    return errors


def test_factors_carry_a_sum_of_no_more_than_their_rank_whole(ranks: RankPool) -> None:
    assert max(ranks.run(2, low_rank_on_rank, 4)[0]) < 1e-5
    assert ranks.run(2, low_rank_on_rank, 8)[0][0] > 0.1


@pytest.mark.parametrize("spec", COMPRESSED, ids=lambda spec: spec["kind"])
def test_all_replicas_get_the_same_bits_and_what_is_lost_comes_later(ranks: RankPool, spec: dict) -> None:
    found = ranks.run(3, reduce_on_rank, spec, 6)
    for first, *others in zip(*found, strict=True):
        for other in others:
            assert [each.tobytes() for each in other["sums"]] == [each.tobytes() for each in first["sums"]]
    for number, name in enumerate(SHAPES):
        arrived = sum(step["sums"][number].astype(np.float64) for step in found[0])
        wanted = sum(true_sum(3, step)[number] for step in range(6))
        still_owed = sum(rank[-1]["state"].get(f"error/{name}", np.zeros(1)) for rank in found)
        np.testing.assert_allclose(arrived + still_owed, wanted, atol=1e-4)


@pytest.mark.parametrize("spec", COMPRESSED, ids=lambda spec: spec["kind"])
def test_errors_do_not_grow(ranks: RankPool, spec: dict) -> None:
    """With feedback the mean over steps comes near what it should be; without, it would stay as far off as one step."""
    found = ranks.run(2, reduce_on_rank, spec, 40)[0]
    mean = sum(step["sums"][0] for step in found) / 40
    wanted = sum(true_sum(2, step)[0] for step in range(40)) / 40
    assert error(mean, wanted) < 0.5 * error(found[0]["sums"][0], true_sum(2, 0)[0])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("spec", COMPRESSED, ids=lambda spec: spec["kind"])
def test_a_gradient_that_is_not_finite_reaches_every_replica_and_no_state(
    ranks: RankPool, spec: dict, poison: float
) -> None:
    for steps in ranks.run(2, reduce_on_rank, spec, 4, (2, poison)):
        assert not np.isfinite(steps[2]["sums"][0]).all()
        before, after = steps[1]["state"], steps[2]["state"]
        assert {name: each.tobytes() for name, each in after.items()} == {
            name: each.tobytes() for name, each in before.items()
        }
        assert all(np.isfinite(each).all() for each in steps[3]["sums"])
        assert any(np.any(each != before[name]) for name, each in steps[3]["state"].items())


def norms_on_rank(mesh: Any, kind: str) -> bool:
    import torch.distributed as dist

    compressor = make_compressor(CompressionSpec(kind=kind), {"norm": (33,)}, dist.group.WORLD, mesh.device)
    tensor = torch.full((33,), 0.1 + mesh.rank)
    compressor.all_reduce([tensor])
    compressor.commit(torch.tensor(True))
    return torch.equal(tensor, torch.full((33,), 0.1) + torch.full((33,), 1.1)) and not compressor.state_tensors()


@pytest.mark.parametrize("kind", ["int8", "powersgd"])
def test_norms_alone_are_summed_whole(ranks: RankPool, kind: str) -> None:
    assert ranks.run(2, norms_on_rank, kind) == [True, True]


def test_the_first_steps_are_sent_whole_where_asked(ranks: RankPool) -> None:
    late = ranks.run(2, reduce_on_rank, {"kind": "powersgd", "rank": 2, "start_step": 2}, 3)[0]
    whole = ranks.run(2, reduce_on_rank, {"kind": "none"}, 2)[0]
    for step in range(2):
        assert [each.tobytes() for each in late[step]["sums"]] == [each.tobytes() for each in whole[step]["sums"]]
        assert not any(each.any() for name, each in late[step]["state"].items() if name.startswith("error"))
    assert late[2]["state"]["error/matrix"].any()


def bytes_on_rank(mesh: Any, spec: dict[str, Any]) -> tuple[dict[str, int], int]:
    """What the compressor counts for a sum, and what the kernel counts that this process has received."""
    import torch.distributed as dist

    shapes = {"matrix": (2000, 500), "norm": (999,)}
    compressor = make_compressor(CompressionSpec(**spec), shapes, dist.group.WORLD, mesh.device)
    tensors = [torch.randn(shape) for shape in shapes.values()]
    compressor.all_reduce(tensors)  # forms the connections
    compressor.commit(torch.tensor(True))
    dist.barrier()  # comes after what is still on its way
    before = received_by_connection()
    dist.barrier()  # no rank sends for the sum before all have read their counts
    compressor.all_reduce(tensors)
    dist.barrier()
    # Read twice: a connection is left out if the number of its file is closed and used again meanwhile.
    after = received_by_connection() | received_by_connection()
    # Connections of earlier groups of this process may close at any moment, and take their counts with them.
    received = sum(number - before.get(connection, 0) for connection, number in after.items())
    return vars(compressor.commit(torch.tensor(True))), received


def received_by_connection() -> dict[str, int]:
    """Bytes that each TCP connection of this process has received, by the name of its socket (its inode).

    Not those sent: on a busy machine the kernel sends some again, and counts repetitions that it then leaves out.
    """
    received = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = str(entry.readlink())
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    (received[name],) = struct.unpack_from("<Q", info, BYTES_RECEIVED)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EBADF):  # it was closed meanwhile
                raise
    return received


@pytest.mark.parametrize(
    ("spec", "saving"), [({"kind": "none"}, 1.0), *zip(COMPRESSED, (90.0, 3.9, 3.9), strict=True)], ids=str
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_bytes_that_are_counted_are_those_that_the_network_gets(
    ranks: RankPool, spec: dict, saving: float, world_size: int
) -> None:
    found = []
    # The kernel's counts lacked complete messages of one measurement in two runs of the whole suite; the cause is not
    # known. A wrong number of the compressor differs in each.
    for _ in range(MEASUREMENTS):
        measured = ranks.run(world_size, bytes_on_rank, spec)
        for counted, _ in measured:
            assert counted["uncompressed"] == 2 * 4 * 1_000_999 * (world_size - 1) // world_size
            assert counted["uncompressed"] / counted["compressed"] > saving * 0.99
        expected = sum(counted["compressed"] for counted, _ in measured)
        found.append([received for _, received in measured])
        if sum(found[-1]) == pytest.approx(expected, rel=0.02, abs=20_000 * world_size):
            return
    pytest.fail(f"counted {expected}, received by each rank {found}")


@pytest.mark.parametrize("dtype", MAX_VALUE)
def test_a_number_in_a_byte_is_off_by_a_part_of_its_blocks_largest(dtype: torch.dtype) -> None:
    scales = torch.logspace(-30, 30, 16).repeat_interleave(BLOCK)
    numbers = (torch.randn(2, 16 * BLOCK, generator=torch.Generator().manual_seed(1)) * scales).contiguous()
    packed = quantise(numbers, dtype)
    assert packed.shape == (2, packed_size(16 * BLOCK))
    largest = numbers.view(2, 16, BLOCK).abs().amax(dim=-1, keepdim=True)
    off = (dequantise(packed, dtype) - numbers).view(2, 16, BLOCK).abs() / largest
    assert off.max() < (0.5 / 127 if dtype is torch.int8 else 1 / 27)
    assert not dequantise(quantise(torch.zeros(1, BLOCK), dtype), dtype).any()
