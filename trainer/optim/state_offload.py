"""Optimizer state on the device, or offloaded to host memory and copied to the device one bucket at a time.

An offloaded bucket is copied to a staging buffer on the device, updated there by the same kernels, and copied back. On
CUDA the two copies use streams of their own, and overlap with the update of another bucket; two buckets are on the
device at a time. On a CPU the copies are made too, one after another. This project's tests have not run the CUDA path.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class OptimizerStateOffload:
    """Iterates over `buckets` of state tensors on the device, all of one dtype."""

    def __init__(self, buckets: Sequence[Sequence[Tensor]], device: torch.device, *, offload: bool) -> None:
        self._buckets, self._offload = [list(bucket) for bucket in buckets], offload
        self._h2d_stream = self._d2h_stream = None
        if not offload or not self._buckets:
            return
        largest = max(sum(tensor.numel() for tensor in bucket) for bucket in self._buckets)
        dtype = self._buckets[0][0].dtype
        self._staging = [torch.empty(largest, dtype=dtype, device=device) for _ in self._buckets[:2]]
        if device.type == "cuda":
            self._h2d_stream, self._d2h_stream = torch.cuda.Stream(device), torch.cuda.Stream(device)
            self._staging_free = [torch.cuda.Event() for _ in self._staging]

    def buckets(self) -> Iterator[list[Tensor]]:
        """Yield each bucket on the device, in order; changes made before the next one is requested are stored.

        Iterate to the end.
        """
        if not self._offload:
            yield from self._buckets
            return
        for number, bucket in enumerate(self._buckets):
            which = number % len(self._staging)
            sizes = [tensor.numel() for tensor in bucket]
            flat = self._staging[which][: sum(sizes)]
            here = [part.view_as(tensor) for part, tensor in zip(flat.split(sizes), bucket, strict=True)]
            self._copy_in(here, bucket, which)
            yield here
            self._copy_out(here, bucket, which)

    def synchronize(self) -> None:
        """Wait until all changes are in host memory; call it before the host reads the state."""
        if self._d2h_stream is not None:
            self._d2h_stream.synchronize()

    def _copy_in(self, here: list[Tensor], bucket: list[Tensor], which: int) -> None:
        if self._h2d_stream is None:
            _copy(here, bucket)
            return
        self._h2d_stream.wait_event(
            self._staging_free[which]
        )  # of an event that was never recorded there is nothing to wait for
        with torch.cuda.stream(self._h2d_stream):
            _copy(here, bucket)
        torch.cuda.current_stream().wait_stream(self._h2d_stream)

    def _copy_out(self, here: list[Tensor], bucket: list[Tensor], which: int) -> None:
        if self._d2h_stream is None:
            _copy(bucket, here)
            return
        self._d2h_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._d2h_stream):
            _copy(bucket, here)
        self._staging_free[which].record(self._d2h_stream)


def state_like(shard: Tensor, *, offload: bool) -> Tensor:
    """Return zeros like the shard, on its device, or with `offload` in host memory, pinned if the shard is on a GPU."""
    if not offload:
        return torch.zeros_like(shard)
    return torch.zeros(shard.shape, dtype=shard.dtype, pin_memory=shard.device.type == "cuda")


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)
