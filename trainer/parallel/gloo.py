"""Gloo's process groups, with one worker thread each.

Torch gives a group two. Both note the name of the collective that they finished in one string, without a lock
(`runLoop` in torch's ProcessGroupGloo.cpp, up to 2.13 at least). The name of a reduce-scatter is long enough to be on
the heap: when they finish one and another collective at the same time, one thread writes into memory that the other has
freed, and the process crashes some time later. Torch ignores the options of a group of its own backend `gloo`, so this
is a backend with a name of its own.
"""

import os
from typing import Any

import torch.distributed as dist

BACKEND = "gloo_one_thread"


def register() -> str:
    """Make the backend known to torch in this process, and return its name, for `init_process_group`."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
    return BACKEND


def _create(group: Any, _: Any) -> dist.ProcessGroupGloo:
    """Return the backend of a group, as torch creates that of `gloo` but for the number of threads."""
    options = dist.ProcessGroupGloo._Options()
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "")
    options._devices = [dist.ProcessGroupGloo.create_device(interface=each) for each in interfaces.split(",") if each]
    options._devices = options._devices or [dist.ProcessGroupGloo.create_default_device()]
    options._timeout = group.timeout
    options._threads = 1
    options.global_ranks_in_group, options.group_name = group.global_ranks_in_group, group.group_id
    backend = dist.ProcessGroupGloo(group.store, group.group_rank, group.group_size, options)
    backend._set_sequence_number_for_group()
    return backend
