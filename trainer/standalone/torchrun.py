"""`torchrun --nproc-per-node N -m trainer job.yaml`: run one rank under torchrun, without an agent.

The first rank prepares the data while the others wait on the store. Nodes share the output folder. Restarted
ranks continue from the newest checkpoint, use new key prefixes in the store, and use smaller micro-batches after an
out-of-memory error.
"""

import socket
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from torch.distributed import PrefixStore, Store, TCPStore

from trainer.agent.base_model import fetch_base_model
from trainer.agent.dataset import DatasetPreparer
from trainer.agent.shipper import Shipper
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.contract.encryption import Encryptor
from trainer.contract.run import EXIT_STATUS, AttemptEnd, EndClass, ProgressEvent, StopRequest
from trainer.contract.training import ProcessLayout
from trainer.data.shards import DatasetIndex
from trainer.errors import TrainerError
from trainer.reporting.sinks.choice import StandaloneSinkConfig, start_sinks
from trainer.reporting.sinks.sink_queue import ReportEvent
from trainer.reporting.spool import SpoolWriter
from trainer.resilience.assignment import Assignment, FolderConnection
from trainer.resilience.failures import classify_exception
from trainer.resilience.memory import (
    load_micro_batch,
    out_of_memory,
    reduce_micro_batch,
    store_micro_batch,
)
from trainer.resilience.shared_status import SharedStatus
from trainer.resilience.stop_signals import on_stop_signal
from trainer.resilience.store_server import STORE_TIMEOUT, StoreAddress
from trainer.standalone.terminal import Terminal
from trainer.training.worker import work

PREPARATION_TIMEOUT = timedelta(hours=12)
DELIVERY_SECONDS = 60.0


@dataclass(frozen=True)
class TorchrunProcess:
    """The rank, node and store of this process, as torchrun sets them. `attempt`: number of restarts."""

    rank: int
    local_rank: int
    node: int
    layout: ProcessLayout
    store: StoreAddress
    hosts_store: bool
    attempt: int


def read_torchrun_environment(environment: dict[str, str]) -> TorchrunProcess | None:
    """Return the process facts in the environment; None if torchrun did not start this process."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    rank, per_node = int(environment["RANK"]), int(environment["LOCAL_WORLD_SIZE"])
    agent_hosts_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TorchrunProcess(
        rank=rank,
        local_rank=int(environment["LOCAL_RANK"]),
        node=int(environment["GROUP_RANK"]),
        layout=ProcessLayout(nodes=int(environment["WORLD_SIZE"]) // per_node, processes_per_node=per_node),
        store=StoreAddress(environment["MASTER_ADDR"], int(environment["MASTER_PORT"])),
        hosts_store=rank == 0 and not agent_hosts_store,
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def run_rank(
    place: TorchrunProcess,
    settings: LocalSettings,
    output: Path,
    files: list[Path],
    profile: tuple[int, int] | None,
    sinks: StandaloneSinkConfig,
) -> int:
    """Run one rank and return its exit status; 0 for a requested stop, since torchrun restarts anything else."""
    settings = replace(settings, layout=place.layout)
    server = TCPStore(
        place.store.host, place.store.port, is_master=place.hosts_store, timeout=STORE_TIMEOUT, wait_for_workers=False
    )
    store = PrefixStore(f"attempt{place.attempt}/", server)
    terminal = Terminal(settings.training.steps)
    platform = LocalPlatform(output, settings, terminal.show)
    assignment: Assignment | None = None
    try:
        assignment = _prepare_assignment(place, settings, platform, store, output, files)
        assignment = replace(assignment, profile=profile)
        end_class, message = _train(assignment, platform, sinks)
    except Exception as error:  # noqa: BLE001 - printed on the terminal, and reported to torchrun by the exit status
        failure = classify_exception(error, place.rank)
        end_class, message = failure.end_class, failure.message
        if end_class is EndClass.OUT_OF_MEMORY and assignment is not None:
            message = _reduce_micro_batch(assignment, platform, message)
        sys.stderr.write(f"rank {place.rank}: {end_class}: {message}\n")
    if place.rank == 0:
        platform.end(
            AttemptEnd(end_class=end_class, last_step=-1, message=message, exit_codes={}, at=datetime.now(UTC))
        )
        terminal.finish(end_class, output)
    return 0 if end_class is EndClass.STOPPED else EXIT_STATUS[end_class]


def _reduce_micro_batch(assignment: Assignment, platform: LocalPlatform, message: str) -> str:
    """Store the smaller micro-batch size for ranks that torchrun restarts. Return the message of the failure."""
    run, vocab_size = assignment.run, DatasetIndex.read(assignment.dataset_folder).vocab_size
    chosen = SharedStatus(assignment.shared_status, run.layout.processes_per_node).micro_batch()
    tried, smaller = reduce_micro_batch(run, vocab_size, assignment.largest_micro_batch, chosen)
    if smaller is None:
        return out_of_memory(message, tried)
    store_micro_batch(platform.storage, Encryptor(assignment.job_key), run, vocab_size, smaller)
    return (
        f"{message}; if torchrun restarts the ranks, they use micro-batches of {smaller} sequences instead of {tried}"
    )


def _prepare_assignment(
    place: TorchrunProcess,
    settings: LocalSettings,
    platform: LocalPlatform,
    store: Store,
    output: Path,
    files: list[Path],
) -> Assignment:
    """Prepare the data in the output folder on the first rank, wait for it on the others, and return the assignment."""
    if place.rank > 0:
        store.wait(["prepared"], PREPARATION_TIMEOUT)
    run, keys = platform.run(), platform.keys()
    cache = output / "work" / "datasets"
    base = fetch_base_model(cache / "models", run, keys, platform.storage)
    preparer = DatasetPreparer(cache, run, keys, platform, platform.storage, lambda: False, base)
    preparer.fetch_or_prepare(files)
    vocab_size = DatasetIndex.read(preparer.locations[0].folder).vocab_size
    largest = load_micro_batch(platform.storage, Encryptor(keys.job), run, vocab_size)
    if place.rank == 0:
        store.set("prepared", f"{time.time_ns():x}")
    assignment = Assignment(
        run=run,
        training=settings.training,
        job_key=keys.job,
        connection=FolderConnection(output, settings),
        restart_count=place.attempt,
        rank=place.rank,
        local_rank=place.local_rank,
        store=place.store,
        sources=preparer.locations,
        work=output / f"work-{place.node}",
        stamp=store.get("prepared").decode(),
        model_folder=output / "model",
        base_folder=base,
        largest_micro_batch=largest,
        node=socket.gethostname(),
    )
    if place.local_rank == 0:
        SharedStatus(assignment.shared_status, place.layout.processes_per_node, create=True)
        store.set(f"board{place.node}", "made")
    store.wait([f"board{place.node}"], STORE_TIMEOUT)
    return assignment


def _train(assignment: Assignment, platform: LocalPlatform, sinks: StandaloneSinkConfig) -> tuple[EndClass, str]:
    shared_status = SharedStatus(assignment.shared_status, assignment.run.layout.processes_per_node)
    on_stop_signal(lambda *_: shared_status.request_stop(StopRequest.CANCEL))
    shipper, end_class = Shipper(assignment.spool, platform), EndClass.INTERNAL_ERROR
    if assignment.rank == 0:
        report_event = _make_event_reporter(assignment)
        shipper.sinks = start_sinks(assignment.run, platform.keys(), str(platform.output), sinks, report_event)
    if assignment.local_rank == 0:
        shipper.start()
    try:
        end_class = work(assignment)
        return end_class, ""
    except TrainerError as error:
        end_class = error.end_class
        return end_class, str(error)
    finally:
        if assignment.local_rank == 0:
            shipper.finish(DELIVERY_SECONDS)
            shipper.finish_sinks(end_class)


def _make_event_reporter(assignment: Assignment) -> ReportEvent:
    """Return a function that reports events of sinks by the spool, like all other events."""
    writer = SpoolWriter(assignment.spool, "progress", f"sinks-{assignment.stamp}")

    def report_event(kind: str, **data: object) -> None:
        writer.add(ProgressEvent(time=datetime.now(UTC), type=kind, data=data))
        writer.flush()

    return report_event
