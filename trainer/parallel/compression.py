"""Compressed sums of gradients over replicas: one byte for each number, or low-rank factors.

Each replica adds the error of its compression to its gradient of the next step (error feedback, Karimireddy et al.
2019). All replicas get bitwise the same sums: each number is computed by one replica and copied, or by all from the
same bits. A number that is not finite is not finite in the sum either, on all replicas.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract.optimisation import CompressionSpec
from trainer.parallel.quantisation import BLOCK, dequantise, quantise


@dataclass
class WireBytes:
    """Bytes that this rank has sent for the sums of a step, and the bytes that a ring all-reduce would have sent.

    In a ring, each rank sends (ranks - 1) / ranks of the numbers, twice.
    """

    uncompressed: int = 0
    compressed: int = 0


class Compressor:
    """Sums the tensors of `shapes`, in this order, over `group`; this base class sends them uncompressed.

    `all_reduce` leaves new state pending until `commit`. `step`: number of the run's step, from 0.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], group: dist.ProcessGroup | None, device: torch.device
    ) -> None:
        self.bytes = WireBytes()
        self.step = 0
        self._shapes = {name: torch.Size(shape) for name, shape in shapes.items()}
        self._group, self._device = group, device
        self._size = dist.get_world_size(group) if group is not None else 1
        self._rank = dist.get_rank(group) if group is not None else 0

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum the fp32 tensors over the group, in place; a collective."""
        if self._size > 1:
            self.bytes.uncompressed += self._ring_bytes(sum(tensor.numel() for tensor in tensors))
            self._reduce(tensors)

    def commit(self, is_finite: Tensor) -> WireBytes:
        """End the step: store the pending state, or discard it if `is_finite` is false. Return the bytes sent."""
        self.step += 1
        self._commit_state(is_finite)
        sent, self.bytes = self.bytes, WireBytes()
        return sent

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state of this replica by name, sharing memory with it; each replica has other errors."""
        return {}

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        self._all_reduce_uncompressed(tensors)

    def _commit_state(self, is_finite: Tensor) -> None:
        pass

    def _all_reduce_uncompressed(self, tensors: Sequence[Tensor]) -> None:
        """Sum the tensors, in place, with one uncompressed collective."""
        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            dist.all_reduce(flat, group=self._group)
            self.bytes.compressed += self._ring_bytes(flat.numel())
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def _ring_bytes(self, numbers: int) -> int:
        return 2 * 4 * numbers * (self._size - 1) // self._size


class ErrorFeedback:
    """A replica's compression errors of tensors of `shapes`; `pending`: those of a step that is not committed yet.

    They are stored in one flat buffer. Each tensor begins at a multiple of `unit`; the length is a multiple of
    `multiple`.
    """

    def __init__(
        self, shapes: Mapping[str, torch.Size], device: torch.device, unit: int = 1, multiple: int = 1
    ) -> None:
        self._shapes = dict(shapes)
        self._starts, end = [], 0
        for shape in shapes.values():
            self._starts.append(end)
            end += -(-shape.numel() // unit) * unit
        self._errors = torch.zeros(-(-end // multiple) * multiple, device=device)
        self.pending: Tensor | None = None

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat buffer that has the layout of the errors."""
        found = zip(self._starts, self._shapes.values(), strict=True)
        return [flat[start : start + shape.numel()].view(shape) for start, shape in found]

    def add_errors(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensors plus the errors of the last step, as a flat buffer."""
        assert self.pending is None, "the previous step was not committed"
        flat = self._errors.clone()
        for view, tensor in zip(self.views(flat), tensors, strict=True):
            view += tensor
        return flat

    def commit(self, is_finite: Tensor) -> None:
        """Store the new errors if the step was finite."""
        if self.pending is not None:
            torch.where(is_finite, self.pending, self._errors, out=self._errors)
            self.pending = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the errors by name, to checkpoint."""
        return {f"error/{name}": view for name, view in zip(self._shapes, self.views(self._errors), strict=True)}


class ByteCompressor(Compressor):
    """`int8` and `fp8`: each rank receives the bytes of its share of the numbers, sums them in fp32, and sends the sums
    as bytes.

    One-dimensional tensors, such as norms, are few numbers and are not compressed. A quantisation block never has
    numbers of two tensors, whose magnitudes may differ.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        group: dist.ProcessGroup | None,
        device: torch.device,
        spec: CompressionSpec,
    ) -> None:
        super().__init__(shapes, group, device)
        self._dtype = torch.float8_e4m3fn if spec.kind == "fp8" else torch.int8
        self._start_step = spec.start_step
        matrices = {name: shape for name, shape in self._shapes.items() if len(shape) > 1}
        self._feedback = ErrorFeedback(matrices, device, BLOCK, self._size * BLOCK)

    def _commit_state(self, is_finite: Tensor) -> None:
        self._feedback.commit(is_finite)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to checkpoint, by name."""
        return self._feedback.state_tensors()

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        if self.step < self._start_step or all(tensor.ndim < 2 for tensor in tensors):
            self._all_reduce_uncompressed(tensors)
            return
        self._all_reduce_uncompressed([tensor for tensor in tensors if tensor.ndim < 2])
        matrices = [tensor for tensor in tensors if tensor.ndim > 1]
        target_RN = self._feedback.add_errors(matrices).view(self._size, -1)
        outgoing_RM = quantise(target_RN, self._dtype)
        errors_RN = target_RN - dequantise(outgoing_RM, self._dtype)
        # A rank's own contribution to its share is not sent: it is added uncompressed, without error.
        mine_N, mine_error_N = target_RN[self._rank], errors_RN[self._rank].zero_()
        sum_N = self._sum_share(outgoing_RM, mine_N)
        result_RN = dequantise(self._all_gather(quantise(sum_N[None], self._dtype)[0]), self._dtype)
        # The error of compressing the sum is fed back by the rank that has computed it.
        mine_error_N += sum_N - result_RN[self._rank]
        self._feedback.pending = errors_RN.view(-1)
        for matrix, summed in zip(matrices, self._feedback.views(result_RN.view(-1)), strict=True):
            matrix.copy_(summed)

    def _sum_share(self, outgoing_RM: Tensor, mine_N: Tensor) -> Tensor:
        """Return this rank's share of the sum over all ranks, added in the order of ranks."""
        size = outgoing_RM.shape[1]
        splits = [0 if peer == self._rank else size for peer in range(self._size)]
        peers = [peer for peer in range(self._size) if peer != self._rank]
        received = torch.empty(len(peers) * size, dtype=torch.uint8, device=self._device)
        dist.all_to_all_single(received, outgoing_RM[peers].view(-1), splits, splits, group=self._group)
        self.bytes.compressed += len(peers) * size
        others = iter(dequantise(received.view(len(peers), size), self._dtype))
        total = torch.zeros_like(mine_N)
        for peer in range(self._size):
            total += mine_N if peer == self._rank else next(others)
        return total

    def _all_gather(self, packed_M: Tensor) -> Tensor:
        """Return [R, M], the bytes of each rank."""
        gathered = [torch.empty_like(packed_M) for _ in range(self._size)]
        dist.all_gather(gathered, packed_M, group=self._group)
        self.bytes.compressed += (self._size - 1) * packed_M.numel()
        return torch.stack(gathered)


class LowRankCompressor(Compressor):
    """`powersgd` (Vogels et al. 2019): approximates the sum of the ranks' matrices M by P Q^T.

    Each step does one power iteration from the last Q: P is the sum of all M Q, made orthonormal, and Q the sum of all
    M^T P. Tensors of more dimensions are stacks of matrices. Tensors that factors of `rank` columns would not make
    smaller are sent as int8, and so are the embedding and the head: most of their rows belong to tokens that few
    sequences contain, so their gradients have no low rank.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        group: dist.ProcessGroup | None,
        device: torch.device,
        spec: CompressionSpec,
    ) -> None:
        super().__init__(shapes, group, device)
        self._start_step = spec.start_step
        self._low_rank = {name: shape for name, shape in self._shapes.items() if _has_low_rank(name, shape, spec.rank)}
        rest = {name: shape for name, shape in self._shapes.items() if name not in self._low_rank}
        self._rest = ByteCompressor(rest, group, device, spec)
        self._feedback = ErrorFeedback(self._low_rank, device)
        self._factors = {
            name: _first_factor(name, shape, spec.rank).to(device) for name, shape in self._low_rank.items()
        }
        self._pending_factors: dict[str, Tensor] = {}

    def commit(self, is_finite: Tensor) -> WireBytes:
        """Store errors and factors if the step was finite. Return the bytes sent."""
        rest, sent = self._rest.commit(is_finite), super().commit(is_finite)
        return WireBytes(sent.uncompressed, sent.compressed + rest.compressed)

    def _commit_state(self, is_finite: Tensor) -> None:
        self._feedback.commit(is_finite)
        for name, factor in self._pending_factors.items():
            torch.where(is_finite, factor, self._factors[name], out=self._factors[name])
        self._pending_factors.clear()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to checkpoint, by name."""
        factors = {f"factor/{name}": each for name, each in self._factors.items()}
        return self._feedback.state_tensors() | factors | self._rest.state_tensors()

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        self._rest.step = self.step
        named = dict(zip(self._shapes, tensors, strict=True))
        targets = [named.pop(name) for name in self._low_rank]
        self._rest.all_reduce(list(named.values()))
        if not targets:
            return
        if self.step < self._start_step:
            self._all_reduce_uncompressed(targets)
            self._update_factors(targets)
            return
        target = self._feedback.add_errors(targets)
        matrices = self._matrices(self._feedback.views(target))
        lefts = {name: matrix_NRC @ self._factors[name] for name, matrix_NRC in matrices.items()}
        self._all_reduce_uncompressed(list(lefts.values()))
        lefts = _orthonormal(lefts)
        rights = {name: matrix_NRC.mT @ lefts[name] for name, matrix_NRC in matrices.items()}
        for name, matrix_NRC in matrices.items():
            matrix_NRC -= lefts[name] @ rights[name].mT
        self._feedback.pending = target
        self._all_reduce_uncompressed(list(rights.values()))
        self._pending_factors = rights
        for name, target in zip(self._low_rank, targets, strict=True):
            target.copy_((lefts[name] @ rights[name].mT).view_as(target))

    def _update_factors(self, summed: Sequence[Tensor]) -> None:
        """Update the factors from uncompressed sums, so that the first compressed step starts from good factors."""
        matrices = self._matrices(summed)
        lefts = _orthonormal({name: matrix_NRC @ self._factors[name] for name, matrix_NRC in matrices.items()})
        self._pending_factors = {name: matrix_NRC.mT @ lefts[name] for name, matrix_NRC in matrices.items()}

    def _matrices(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return views [N, R, C] of the matrices that are compressed to low rank."""
        return {name: tensor.view(-1, *tensor.shape[-2:]) for name, tensor in zip(self._low_rank, tensors, strict=True)}


def make_compressor(
    spec: CompressionSpec, shapes: Mapping[str, Sequence[int]], group: dist.ProcessGroup | None, device: torch.device
) -> Compressor:
    """Return the compressor of `spec.kind` for tensors of `shapes`, summed over `group`."""
    if spec.kind == "none" or group is None:
        return Compressor(shapes, group, device)
    if spec.kind == "powersgd":
        return LowRankCompressor(shapes, group, device, spec)
    return ByteCompressor(shapes, group, device, spec)


def _has_low_rank(name: str, shape: torch.Size, rank: int) -> bool:
    if len(shape) < 2 or name.split(".")[0] in ("embedding", "head"):
        return False
    rows, columns = shape[-2:]
    return bool(rank <= min(rows, columns) and rank * (rows + columns) < rows * columns)


def _first_factor(name: str, shape: torch.Size, rank: int) -> Tensor:
    """Return [N, C, rank] of normal numbers, the same on every rank."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape[:-2].numel(), shape[-1], rank, generator=generator)


def _orthonormal(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return each [N, R, rank] with orthonormal columns; matrices of equal R are computed together."""
    by_rows: dict[int, list[str]] = {}
    for name, matrix_NRr in matrices.items():
        by_rows.setdefault(matrix_NRr.shape[1], []).append(name)
    found: dict[str, Tensor] = {}
    for names in by_rows.values():
        together, _ = torch.linalg.qr(torch.cat([matrices[name] for name in names]))
        found |= zip(names, together.split([len(matrices[name]) for name in names]), strict=True)
    return found
