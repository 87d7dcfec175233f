"""A run on one node with a fault: the platform, which can cause it from outside, and the attempts that it takes."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.faults.worker import Fault, work
from tests.small_disk import SmallDisk, small_disk
from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_training
from trainer.agent import hang_watch, worker_group
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.client.http import PlatformClient
from trainer.contract.node_rendezvous import JoinReply, JoinRequest
from trainer.contract.run import CheckpointPolicy, EndClass, ProcessLayout, RunConfig
from trainer.contract.training import TrainingSpec
from trainer.resilience import progress
from trainer.resilience.assignment import HttpConnection

STEPS = 30
REFUSED_REQUESTS = 6  # of an outage, which ends with them
MAX_ATTEMPTS = 3
MAX_RESTARTS = 3
DISK = "48m"  # of a node that is full: its data and reports fit, with room for a few copies of the model


def training_of(phase: str) -> TrainingSpec:
    """The spec of a cell: with compilation in its phase."""
    return tiny_training(steps=STEPS, compile=phase == "compile", data={"source": "dataset:tiny"})


@dataclass
class Api(AgentApi):
    """The platform of a run. `cause`: is called when a worker reaches the phase of the fault;
    `on_second_round`: when an agent asks for another round of the rendezvous."""

    cause: Callable[[], None] = lambda: None
    on_second_round: Callable[[], None] = lambda: None
    caused: int = 0
    _ended: int = 0

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/fault":
            self.caused += 1
            self.cause()
            return 200, {}
        reply = super().answer(method, path, body)
        if path == "/rendezvous" and any(join.round > 1 for join in self.joins.values()):
            self.on_second_round()
        return reply

    def begin_attempt(self, number: int) -> None:
        """Let the next attempt resume from the newest checkpoint."""
        with self.changed:
            self.run = RunConfig.model_validate({**self.run.model_dump(), "attempt_number": number})
            self.joins, self.placed, self.resumed, self.over = {}, {}, {}, False
            self._ended = len(self.ends)

    def _place(self, join: JoinRequest) -> JoinReply:
        """As the platform does: only the ends of this attempt count."""
        ends, self.ends = self.ends, self.ends[self._ended :]
        try:
            return super()._place(join)
        finally:
            self.ends = ends


@dataclass
class Finished:
    """A run that is over, and what it left. `ends`: of its attempts."""

    api: Api
    ends: list[EndClass]
    records: Path
    works: list[Path]
    caused: bool = True
    problems: list[str] = field(default_factory=list)

    @property
    def losses(self) -> dict[int, float]:
        return self.api.losses()


def tiny_platform(training: TrainingSpec, processes: int, nodes: int = 1, **changes: Any) -> Api:
    """Return a platform with a tiny run."""
    run, keys, objects = platform_run(training, processes=processes)
    fields = {
        "layout": ProcessLayout(nodes=nodes, processes_per_node=processes), "max_restarts_in_place": MAX_RESTARTS,
        **changes,
    }  # fmt: skip
    return Api(RunConfig.model_validate({**run.model_dump(), **fields}), keys, objects)


def run_on_one_node(folder: Path, kind: str, phase: str, *, rank: int = 1, processes: int = 2) -> Finished:
    """Run with a fault ("": none) until an attempt is complete, in worker processes of this process's fork server.

    Skips (pytest) where the rights for the fault are missing.
    """
    records = folder / "records"
    records.mkdir(parents=True)
    fault = Fault(records, kind, phase, rank)
    with contextlib.ExitStack() as stack:
        changes = {"checkpoint": CheckpointPolicy(every_steps=10, shadow_every_steps="none")} if kind == "shard" else {}
        api = stack.enter_context(tiny_platform(training_of(phase), processes, **changes))
        disk = stack.enter_context(small_disk(folder / "node1", DISK)) if kind == "disk" else None
        stack.enter_context(_patched(partial(work, fault)))
        api.cause = _outside(api, kind, phase, disk, folder)
        run = Finished(api, [], records, [])
        for number in range(1, MAX_ATTEMPTS + 1):
            api.begin_attempt(number)
            place = folder / f"node{number}" / "work"
            run.works.append(place)
            client = PlatformClient(api.url, TOKEN, retry_seconds=30.0)
            supervisor = Supervisor(HttpConnection(api.url, TOKEN), client, NodeConfig(place))
            run.ends.append(supervisor.run())
            if run.ends[-1] is EndClass.COMPLETED:
                break
        run.caused = bool(api.caused)
        return run


@contextlib.contextmanager
def _patched(worker: Callable[..., None]) -> Iterator[None]:
    """Start this function in worker processes, and examine ranks after seconds, not minutes."""
    before = worker_group.run_worker, progress.HANG_SECONDS, hang_watch.EXAMINATION_SECONDS
    worker_group.run_worker = worker
    progress.HANG_SECONDS, hang_watch.EXAMINATION_SECONDS = 3.0, 2.0
    try:
        yield
    finally:
        worker_group.run_worker, progress.HANG_SECONDS, hang_watch.EXAMINATION_SECONDS = before


def _outside(api: Api, kind: str, phase: str, disk: SmallDisk | None, folder: Path) -> Callable[[], None]:
    def refuse(service: str) -> None:
        api.refusals[service] = REFUSED_REQUESTS

    def damage() -> None:
        if phase == "start":
            (shard,) = (folder / "node1").rglob("train-*.tokens")
            shard.write_bytes(_flipped(shard.read_bytes()))
        else:
            steps = STEPS if phase in ("export", "end") else 20  # of the newest
            api.wait_for(lambda: api.checkpoints and api.checkpoints[-1]["step"] >= steps)
            key = api.checkpoints[-1]["files"][0]["parts"][0]["key"]
            api.objects[key] = _flipped(api.objects[key])

    def fill() -> None:
        assert disk is not None
        disk.fill()

    return {
        "store": partial(refuse, "store"), "platform": partial(refuse, "api"), "shard": damage, "disk": fill,
    }.get(kind, lambda: None)  # fmt: skip


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Return whether a condition becomes true within so many seconds."""
    pause = threading.Event()
    for _ in range(int(seconds * 20)):
        if condition():
            return True
        pause.wait(0.05)
    return condition()
