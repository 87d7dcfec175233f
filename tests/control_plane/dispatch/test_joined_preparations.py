"""Jobs that need the same prepared data at the same time: real agents against the real API, database and store."""

import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from athanor.artifacts import preparations, storage
from athanor.artifacts.models import PreparationClaim, PreparedDataset
from athanor.clusters.models import Pool
from athanor.dispatch import tokens
from athanor.jobs import services
from athanor.jobs.models import Attempt, JobEvent
from deploy.local.handle import wait_until
from tests.control_plane import drive
from tests.control_plane.api.live import LiveServer
from tests.control_plane.artifacts.test_data_of_jobs import prepare_spec, submitted
from tests.control_plane.artifacts.test_datasets import upload
from tests.trainer.runs import tiny_text
from trainer.agent import dataset as agent_dataset
from trainer.agent.rendezvous_client import NodeIdentity
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.client.http import PlatformClient
from trainer.contract.data import MixturePart, TokenizerSpec
from trainer.contract.run import EndClass
from trainer.data.documents import RawObject
from trainer.data.prepare import Preparation
from trainer.errors import TrainerError
from trainer.resilience.assignment import HttpConnection
from trainer.resilience.forking import start_fork_server

prepare_alone = Preparation.run
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def live(db: None) -> Iterator[LiveServer]:
    running = LiveServer()
    yield running
    running.close()


@dataclass
class Preparing:
    """Counts preparations, and holds the first one up until `proceed`; `failure` is what it then raises."""

    count: int = 0
    begun: threading.Event = field(default_factory=threading.Event)
    proceed: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, preparation: Preparation) -> Any:
        with self.lock:
            self.count += 1
            is_first = self.count == 1
        self.begun.set()
        if is_first:
            assert self.proceed.wait(60)
            if self.failure is not None:
                raise self.failure
        return prepare_alone(preparation)


@pytest.fixture
def preparing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Preparing]:
    counted = Preparing()
    monkeypatch.setattr(Preparation, "run", lambda preparation: counted(preparation))
    yield counted
    counted.proceed.set()


@dataclass
class Agents:
    """Agents of attempts, each in a thread with a folder of its own, so that nodes share nothing."""

    live: LiveServer
    folder: Path
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def start(self, attempt: Attempt, index: int = 0) -> Any:
        """Start the agent of a node of an attempt."""
        url, token = f"{self.live.origin}/api/agent/v1", tokens.issue(attempt.id)
        supervisor = Supervisor(
            HttpConnection(url, token),
            PlatformClient(url, token, retry_seconds=20.0),
            NodeConfig(self.folder / f"{attempt.id}-{index}", node=NodeIdentity(index=index)),
        )
        return self.pool.submit(supervisor.run)


@pytest.fixture
def agents(live: LiveServer, preparing: Preparing, tmp_path: Path) -> Iterator[Agents]:
    running = Agents(live, tmp_path)
    yield running
    preparing.proceed.set()
    running.pool.shutdown()


@pytest.fixture
def attempts(api: Any, world: Any, bucket: str) -> list[Attempt]:
    """Return live attempts of three jobs that prepare the same data."""
    upload(api, tiny_text().encode(), name="one")
    return [drive.start(submitted(api, prepare_spec("dataset:one", name=f"job-{number}"))) for number in range(3)]


def waiting(attempts: list[Attempt]) -> Callable[[], bool]:
    jobs = [attempt.job_id for attempt in attempts]
    return lambda: JobEvent.objects.filter(job__in=jobs, type="dataset.waiting").count() == len(jobs)


def stored(attempts: list[Attempt]) -> dict[str, int]:
    """Bytes of prepared data in the bucket, by job."""
    found = {a.job_id: list(storage.listing(f"s3://{storage.bucket()}/jobs/{a.job_id}/dataset/")) for a in attempts}
    return {job: sum(item.size for item in items) for job, items in found.items() if items}


def test_jobs_that_start_together_prepare_their_data_once(
    agents: Agents, attempts: list[Attempt], preparing: Preparing
) -> None:
    preparing.proceed.set()
    ends = [agents.start(attempt) for attempt in attempts]
    assert [end.result(60) for end in ends] == [EndClass.COMPLETED] * 3
    assert preparing.count == 1
    prepared = PreparedDataset.objects.get()
    assert stored(attempts) == {prepared.job_id: prepared.size_bytes}
    assert not PreparationClaim.objects.exists()


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a unit of each file, for processes of a fork server."""
    start_fork_server()
    monkeypatch.setattr(agent_dataset, "UNIT_BYTES", 1)
    monkeypatch.setattr(agent_dataset, "num_processes", lambda units, nodes: 1)


def upload_files(api: Any, name: str, contents: list[bytes], suffix: str = "txt") -> None:
    """Create a data set of several files."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number, content in enumerate(contents):
            entry = tarfile.TarInfo(f"{number}.{suffix}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    answer = upload(api, archive.getvalue(), name=name, content_type="application/x-tar")
    assert answer.status_code == 201, answer.content


def test_nodes_of_a_job_prepare_its_data_together(
    agents: Agents, api: Any, world: Any, bucket: str, small_units: None, tmp_path: Path
) -> None:
    Pool.objects.update(nodes=2)
    text = tiny_text(60_000)
    files = [text[start : start + 15_000].encode() for start in range(0, 60_000, 15_000)]
    upload_files(api, "several", files)
    attempt = drive.start(submitted(api, prepare_spec("dataset:several", resources={"nodes": 2, "cluster": "fake"})))
    ends = [agents.start(attempt, index) for index in range(2)]
    assert [end.result(120) for end in ends] == [EndClass.COMPLETED] * 2
    made = PreparedDataset.objects.get()
    assert not PreparationClaim.objects.exists()
    assert stored([attempt]) == {attempt.job_id: made.size_bytes}
    units = [lambda n=n, c=c: [RawObject.of(f"{n}.txt", c)] for n, c in enumerate(files)]
    alone = Preparation(units, MixturePart(source="dataset:several"), TokenizerSpec(vocab_size=300), tmp_path / "alone")
    events = JobEvent.objects.filter(job=attempt.job_id, type="dataset.prepared")
    assert [event.data["source"] for event in events] == ["dataset:several"], "the first node reports"
    assert made.manifest["fingerprint"] == prepare_alone(alone).fingerprint


def test_an_error_in_a_unit_ends_all_nodes_with_its_place(
    agents: Agents, api: Any, world: Any, bucket: str, small_units: None
) -> None:
    Pool.objects.update(nodes=2)
    upload_files(api, "several", [b'{"text": "one"}\n{"other": "two"}\n'] * 4, suffix="jsonl")
    spec = prepare_spec("dataset:several", resources={"nodes": 2, "cluster": "fake"})
    spec["prepare"]["data"]["text_field"] = "text"
    attempt = drive.start(submitted(api, spec))
    ends = [agents.start(attempt, index) for index in range(2)]
    assert {end.result(120) for end in ends} <= {EndClass.DATA_ERROR, EndClass.STOPPED}
    attempt.refresh_from_db()
    assert attempt.end_report is not None
    assert ".jsonl line 2 has no field 'text' (it has: other)" in attempt.end_report["message"]
    assert not PreparedDataset.objects.exists()


def test_a_job_that_waits_says_for_whom_and_how_long(
    agents: Agents, attempts: list[Attempt], preparing: Preparing, api: Any
) -> None:
    holder = agents.start(attempts[0])
    assert preparing.begun.wait(20)
    others = [agents.start(attempt) for attempt in attempts[1:]]
    wait_until(waiting(attempts[1:]), "both report that they wait", 20)
    events = JobEvent.objects.filter(type="dataset.waiting")
    assert {(event.data["source"], event.data["job"]) for event in events} == {("dataset:one", attempts[0].job_id)}
    preparing.proceed.set()
    assert [each.result(60) for each in (holder, *others)] == [EndClass.COMPLETED] * 3
    phases = JobEvent.objects.filter(job=attempts[1].job_id, type="phase.finished", data__phase="wait_for_data")
    assert [event.data["seconds"] > 0 for event in phases] == [True]
    found = api.send("GET", f"jobs/{attempts[1].job_id}/timeline").json()
    assert found["timings"]["startup"]["wait_for_data"] > 0


def test_an_error_in_the_data_ends_all_that_wait_with_it(
    agents: Agents, attempts: list[Attempt], preparing: Preparing, api: Any, world: Any
) -> None:
    preparing.failure = TrainerError(EndClass.DATA_ERROR, "a.jsonl line 7 has no field 'text'")
    ends = [agents.start(attempts[0])]
    assert preparing.begun.wait(20)
    ends += [agents.start(attempt) for attempt in attempts[1:]]
    wait_until(waiting(attempts[1:]), "both report that they wait", 20)
    preparing.proceed.set()
    assert [end.result(60) for end in ends] == [EndClass.DATA_ERROR] * 3
    attempts[2].refresh_from_db()
    assert attempts[2].end_report is not None
    assert "a.jsonl line 7" in attempts[2].end_report["message"]
    assert attempts[0].job_id in attempts[2].end_report["message"]
    assert preparing.count == 1
    later = drive.start(submitted(api, prepare_spec("dataset:one", name="later")))
    assert agents.start(later).result(60) is EndClass.COMPLETED, "it was submitted after the error, and tries itself"


def test_another_job_takes_over_after_a_failure_of_the_node(
    agents: Agents, attempts: list[Attempt], preparing: Preparing
) -> None:
    preparing.failure = OSError("the disk is full")
    ends = [agents.start(attempts[0])]
    assert preparing.begun.wait(20)
    ends += [agents.start(attempt) for attempt in attempts[1:]]
    wait_until(waiting(attempts[1:]), "both report that they wait", 20)
    preparing.proceed.set()
    found = [end.result(60) for end in ends]
    assert EndClass.COMPLETED not in found[:1]
    assert found[1:] == [EndClass.COMPLETED] * 2
    assert preparing.count == 2


def test_a_holder_whose_lease_expired_registers_nothing_and_uses_what_the_other_made(
    agents: Agents, attempts: list[Attempt], preparing: Preparing
) -> None:
    frozen = agents.start(attempts[0])
    assert preparing.begun.wait(20)
    other = agents.start(attempts[1])
    wait_until(waiting(attempts[1:2]), "the other job reports that it waits", 20)
    PreparationClaim.objects.update(lease_until="2026-01-01T00:00:00Z")  # as if the first were stopped for long
    assert other.result(60) is EndClass.COMPLETED
    preparing.proceed.set()
    assert frozen.result(60) is EndClass.COMPLETED
    assert PreparedDataset.objects.get().job_id == attempts[1].job_id
    assert set(stored(attempts)) == {attempts[1].job_id}


def test_a_wait_ends_when_the_job_is_cancelled(
    agents: Agents, attempts: list[Attempt], preparing: Preparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.start(attempts[0])
    assert preparing.begun.wait(20)
    cancelled = agents.start(attempts[1])
    wait_until(waiting(attempts[1:2]), "it reports that it waits", 20)
    services.request_stop(attempts[1].job_id, actor="ada")
    drive.settle()
    assert cancelled.result(60) is EndClass.STOPPED
    preparing.proceed.set()


def test_the_attempt_that_ended_without_a_word_holds_nothing(
    agents: Agents, attempts: list[Attempt], preparing: Preparing, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparations, "LEASE_SECONDS", 3600.0)
    agents.start(attempts[0])
    assert preparing.begun.wait(20)
    other = agents.start(attempts[1])
    wait_until(waiting(attempts[1:2]), "the other job reports that it waits", 20)
    drive.report(attempts[0], EndClass.PROCESS_KILLED)
    world.finish(attempts[0].backend_name, 137)
    drive.settle()
    assert other.result(60) is EndClass.COMPLETED
    assert PreparedDataset.objects.get().job_id == attempts[1].job_id
