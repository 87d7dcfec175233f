"""`torchrun ... -m trainer preflight`: measure devices and network of these nodes without a job or the platform."""

import argparse
import os
import socket
import sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from trainer.contract import environment as names
from trainer.contract.preflight import PreflightReport, format_report
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.errors import TrainerError
from trainer.parallel.mesh import join, leave
from trainer.resilience.store_server import STORE_TIMEOUT
from trainer.standalone.torchrun import TorchrunProcess, read_torchrun_environment
from trainer.training.cpu import share_cores
from trainer.training.numa import bind_to_gpu
from trainer.training.preflight import Preflight
from trainer.training.versions import compare_versions, versions_here


def preflight_command(arguments: list[str]) -> int:
    """Measure, and print the report on the first rank. Return the exit status: 0, or that of `node_unfit` if a node is
    broken or has other versions than most."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer preflight",
        description="Measure devices and network before a run. Put torchrun in front for more than one process.",
    )
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="folder of the disk to measure (default: here)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    chosen = parser.parse_args(arguments)
    place = read_torchrun_environment(dict(os.environ))
    per_node = place.layout.processes_per_node if place is not None else 1
    local_rank = place.local_rank if place is not None else 0
    if not bind_to_gpu(local_rank, per_node):
        share_cores(per_node)
    try:
        report = _measure(place, chosen.folder)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STATUS[error.end_class]
    finally:
        leave()
    if place is None or place.rank == 0:
        text = report.model_dump_json(indent=2) if chosen.json else "\n".join(format_report(report))
        sys.stdout.write(text + "\n")
    return EXIT_STATUS[EndClass.NODE_UNFIT if report.result == "broken" else EndClass.COMPLETED]


def _measure(place: TorchrunProcess | None, folder: Path) -> PreflightReport:
    if place is None:
        mesh = join(0, 1, 0, HashStore(), single_node=True)
        return Preflight(mesh, [_name_here()], folder).run()
    layout = place.layout
    store: Store = TCPStore(
        place.store.host, place.store.port, is_master=place.hosts_store, timeout=STORE_TIMEOUT, wait_for_workers=False
    )
    store = PrefixStore(f"preflight{place.attempt}/", store)
    nodes = [_name_here()]
    if layout.nodes > 1:
        versions = versions_here() if place.local_rank == 0 else None
        nodes = compare_versions(PrefixStore("versions/", store), nodes[0], place.node, layout.nodes, versions)
    mesh = join(place.rank, layout.world_size, place.local_rank, store, single_node=layout.nodes == 1)
    report = Preflight(mesh, nodes, folder).run()
    dist.barrier()  # the first rank may be the one that holds the store
    return report


def _name_here() -> str:
    """Return the name of this node: that of its cluster, if a backend has started this process."""
    return os.environ.get(names.NODE_NAME) or socket.gethostname()
