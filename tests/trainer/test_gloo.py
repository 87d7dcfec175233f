"""Process groups on CPUs: torch's own have two worker threads, which corrupt memory (`trainer/parallel/gloo.py`)."""

import subprocess
import sys

JOINED = """
import torch
import torch.distributed as dist
from trainer.parallel.mesh import all_reduce_world, join, leave

def worker_threads(group):
    return group._get_backend(torch.device("cpu")).options._threads

mesh = join(0, 1, 0, dist.HashStore(), single_node=True)
own = dist.new_group([0])
print(worker_threads(dist.group.WORLD), worker_threads(own), dist.get_process_group_ranks(own))
print(all_reduce_world(torch.ones(2), mesh).tolist())
leave()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(worker_threads(dist.group.WORLD))
"""


def test_a_group_has_one_worker_thread_and_torchs_own_has_two() -> None:
    done = subprocess.run([sys.executable, "-c", JOINED], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["1 1 [0]", "[1.0, 1.0]", "2"], done.stdout + done.stderr
