"""Sums of gradients over replicas that travel compressed: a byte for a number, or low-rank factors.

What a replica's gradient loses on the way is its error; it is kept and added to the gradient of the next step, so that
nothing is lost for good, only late (error feedback, Karimireddy et al. 2019). All replicas get bitwise the same sums:
each number is computed by one replica and copied, or by all of them from the same bits. What is not finite stays so, on
all replicas.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract.optimisation import CompressionSpec
from trainer.parallel.quantisation import BLOCK, dequantised, quantised


@dataclass
class WireBytes:
    """Bytes that this rank handed to the network for the sums of a step, and what they would have been uncompressed.

    An uncompressed sum is counted as a ring's: each rank sends (ranks - 1) / ranks of the numbers, twice.
    """

    uncompressed: int = 0
    compressed: int = 0


class Compressor:
    """Sums the tensors of `shapes`, in this order, over `group`; this one sends them whole.

    State made by `all_reduce` is left aside until `commit` says whether the step counts. `step` is the run's, 0-based.
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
        """In place, fp32; a collective."""
        if self._size > 1:
            self.bytes.uncompressed += self._ring_bytes(sum(tensor.numel() for tensor in tensors))
            self._reduce(tensors)

    def commit(self, is_finite: Tensor) -> WireBytes:
        """End the step: keep the state that `all_reduce` made, or where it is skipped the one before, bitwise.

        Returns what the step sent.
        """
        self.step += 1
        self._keep(is_finite)
        sent, self.bytes = self.bytes, WireBytes()
        return sent

    def state_tensors(self) -> dict[str, Tensor]:
        """Return this replica's own state, sharing memory with the live one; other replicas have other errors."""
        return {}

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        self._sum_whole(tensors)

    def _keep(self, is_finite: Tensor) -> None:
        pass

    def _sum_whole(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor, in place, by one uncompressed collective for all."""
        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            dist.all_reduce(flat, group=self._group)
            self.bytes.compressed += self._ring_bytes(flat.numel())
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def _ring_bytes(self, numbers: int) -> int:
        return 2 * 4 * numbers * (self._size - 1) // self._size


class Feedback:
    """A replica's errors of tensors of `shapes`, and those of a step that is not yet committed.

    They lie in one flat buffer, each tensor from a multiple of `unit` on; the buffer's length is one of `multiple`.
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
        """Return views of a flat buffer, laid out like the errors'."""
        found = zip(self._starts, self._shapes.values(), strict=True)
        return [flat[start : start + shape.numel()].view(shape) for start, shape in found]

    def corrected(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return what to sum, flat: the tensors plus the error of the last step."""
        assert self.pending is None, "the step before was not committed"
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
    """`int8` and `fp8`: each rank sums a share of the numbers in fp32 from bytes, and hands the sums out as bytes.

    Norms and whatever else has one dimension are few numbers, and are summed whole. No block has numbers of two
    tensors, whose sizes may differ much.
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
        self._feedback = Feedback(matrices, device, BLOCK, self._size * BLOCK)

    def _keep(self, is_finite: Tensor) -> None:
        self._feedback.commit(is_finite)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to checkpoint, by name."""
        return self._feedback.state_tensors()

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        if self.step < self._start_step or all(tensor.ndim < 2 for tensor in tensors):
            self._sum_whole(tensors)
            return
        self._sum_whole([tensor for tensor in tensors if tensor.ndim < 2])
        matrices = [tensor for tensor in tensors if tensor.ndim > 1]
        wanted_RN = self._feedback.corrected(matrices).view(self._size, -1)
        outgoing_RM = quantised(wanted_RN, self._dtype)
        errors_RN = wanted_RN - dequantised(outgoing_RM, self._dtype)
        # A rank's own part of its share does not travel: it is added as it is, and loses nothing.
        mine_N, mine_error_N = wanted_RN[self._rank], errors_RN[self._rank].zero_()
        sum_N = self._sum_of_share(outgoing_RM, mine_N)
        result_RN = dequantised(self._all_gather(quantised(sum_N[None], self._dtype)[0]), self._dtype)
        # What the sum loses on its way back is an error of the share's owner.
        mine_error_N += sum_N - result_RN[self._rank]
        self._feedback.pending = errors_RN.view(-1)
        for matrix, summed in zip(matrices, self._feedback.views(result_RN.view(-1)), strict=True):
            matrix.copy_(summed)

    def _sum_of_share(self, outgoing_RM: Tensor, mine_N: Tensor) -> Tensor:
        """Sum over all ranks, in their order, of their bytes for this rank's share."""
        size = outgoing_RM.shape[1]
        splits = [0 if peer == self._rank else size for peer in range(self._size)]
        peers = [peer for peer in range(self._size) if peer != self._rank]
        received = torch.empty(len(peers) * size, dtype=torch.uint8, device=self._device)
        dist.all_to_all_single(received, outgoing_RM[peers].view(-1), splits, splits, group=self._group)
        self.bytes.compressed += len(peers) * size
        others = iter(dequantised(received.view(len(peers), size), self._dtype))
        total = torch.zeros_like(mine_N)
        for peer in range(self._size):
            total += mine_N if peer == self._rank else next(others)
        return total

    def _all_gather(self, packed_M: Tensor) -> Tensor:
        """[R, M]: what each rank has."""
        everybodys = [torch.empty_like(packed_M) for _ in range(self._size)]
        dist.all_gather(everybodys, packed_M, group=self._group)
        self.bytes.compressed += (self._size - 1) * packed_M.numel()
        return torch.stack(everybodys)


class LowRankCompressor(Compressor):
    """`powersgd` (Vogels et al. 2019): a matrix M of all ranks as P Q^T, one power iteration a step from the last Q.

    P is the sum of all M Q, made orthonormal; Q the sum of all M^T P. A tensor of more dimensions is a stack of
    matrices. What two factors of `rank` columns would not make smaller travels as int8, and so do the embedding and the
    head: a row of theirs is a word, and most words of a step are in a few sequences, so nothing there has a low rank.
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
        self._feedback = Feedback(self._low_rank, device)
        self._factors = {
            name: _first_factor(name, shape, spec.rank).to(device) for name, shape in self._low_rank.items()
        }
        self._pending_factors: dict[str, Tensor] = {}

    def commit(self, is_finite: Tensor) -> WireBytes:
        """Store errors and factors if the step was finite. Return the bytes sent."""
        rest, sent = self._rest.commit(is_finite), super().commit(is_finite)
        return WireBytes(sent.uncompressed, sent.compressed + rest.compressed)

    def _keep(self, is_finite: Tensor) -> None:
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
            self._sum_whole(targets)
            self._follow(targets)
            return
        wanted = self._feedback.corrected(targets)
        matrices = self._matrices(self._feedback.views(wanted))
        lefts = {name: matrix_NRC @ self._factors[name] for name, matrix_NRC in matrices.items()}
        self._sum_whole(list(lefts.values()))
        lefts = _orthonormal(lefts)
        rights = {name: matrix_NRC.mT @ lefts[name] for name, matrix_NRC in matrices.items()}
        for name, matrix_NRC in matrices.items():
            matrix_NRC -= lefts[name] @ rights[name].mT
        self._feedback.pending = wanted
        self._sum_whole(list(rights.values()))
        self._pending_factors = rights
        for name, target in zip(self._low_rank, targets, strict=True):
            target.copy_((lefts[name] @ rights[name].mT).view_as(target))

    def _follow(self, summed: Sequence[Tensor]) -> None:
        """Set the factors from sums that every rank has in full, so that the first step with factors begins with good
        ones."""
        matrices = self._matrices(summed)
        lefts = _orthonormal({name: matrix_NRC @ self._factors[name] for name, matrix_NRC in matrices.items()})
        self._pending_factors = {name: matrix_NRC.mT @ lefts[name] for name, matrix_NRC in matrices.items()}

    def _matrices(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return views [N, R, C] of the matrices that are compressed to low rank."""
        return {name: tensor.view(-1, *tensor.shape[-2:]) for name, tensor in zip(self._low_rank, tensors, strict=True)}


def make_compressor(
    spec: CompressionSpec, shapes: Mapping[str, Sequence[int]], group: dist.ProcessGroup | None, device: torch.device
) -> Compressor:
    """For tensors of `shapes` that the ranks of `group` sum; without a group there is nothing to send."""
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
    """[N, C, rank] of normal numbers, the same on every rank."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape[:-2].numel(), shape[-1], rank, generator=generator)


def _orthonormal(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return each [N, R, rank] with orthonormal columns; matrices of one shape together."""
    by_rows: dict[int, list[str]] = {}
    for name, matrix_NRr in matrices.items():
        by_rows.setdefault(matrix_NRr.shape[1], []).append(name)
    found: dict[str, Tensor] = {}
    for names in by_rows.values():
        together, _ = torch.linalg.qr(torch.cat([matrices[name] for name in names]))
        found |= zip(names, together.split([len(matrices[name]) for name in names]), strict=True)
    return found
