"""Where the optimiser's state lies: beside the shards, or in host memory, brought to the device a bucket at a time.

Offloaded, a bucket's state is copied to the device, updated there by the very kernels that update it otherwise, and
copied back; on CUDA with streams of their own for the ways there and back, so that both go on while the bucket between
them is updated. Two buckets are on the device at the same time. On a CPU the copies are made all the same, one after
another. The ways on CUDA follow torch's documentation of streams and pinned memory and have never been run on a GPU.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class OptimizerStateOffload:
    """Of state in `buckets`, all of one dtype; `buckets` is how an update sees it."""

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
        """Each bucket on the device, in order; what was changed in it by the time the next is asked for stays changed.
        To be gone through to the end."""
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
        """Until what was changed has arrived in the buckets' own memory: before the host looks at it."""
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
    """Zeros of the shard's shape, beside it or in host memory, pinned where a GPU fetches them."""
    if not offload:
        return torch.zeros_like(shard)
    return torch.zeros(shard.shape, dtype=shard.dtype, pin_memory=shard.device.type == "cuda")


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)
