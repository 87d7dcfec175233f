"""The processes in which torch compiles kernels for GPUs: they must be a rank's own, not the fork server's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_STARTS_WITH_IMPORT = "TORCH_WARM_POOL"


@contextmanager
def unstarted_compile_workers() -> Iterator[None]:
    """Let torch's compiler be imported without these processes, which it starts when it is imported."""
    before = os.environ.get(_STARTS_WITH_IMPORT)
    os.environ[_STARTS_WITH_IMPORT] = "0"
    try:
        yield
    finally:
        del os.environ[_STARTS_WITH_IMPORT]
        if before is not None:
            os.environ[_STARTS_WITH_IMPORT] = before


def start_compile_workers() -> None:
    """Start them in this process, as importing the compiler would have, so that they are ready when it has traced a
    model. There are at most as many as this process may use CPUs."""
    from torch._inductor import config  # noqa: PLC0415 - takes seconds, where the fork server has not imported it
    from torch._inductor.async_compile import AsyncCompile  # noqa: PLC0415 - as above

    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        config.compile_threads = min(config.compile_threads, len(os.sched_getaffinity(0)))
    if os.environ.get(_STARTS_WITH_IMPORT, "1") == "1":
        AsyncCompile.warm_pool()
