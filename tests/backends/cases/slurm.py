"""A real Slurm of four nodes on this host, used by its commands."""

import itertools
import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from athanor.backends.base import BackendUnavailable, Handle
from athanor.backends.slurm.backend import SlurmBackend
from athanor.backends.slurm.commands import CommandClient
from athanor.backends.slurm.rest import RestClient
from athanor.backends.slurm.transport import CommandFailed, Deadline, Transport
from deploy.local.handle import wait_until
from tests.backends.cases.base import PROGRAM, Case, Fault
from tests.slurm import ssh
from tests.slurm.cluster import SlurmCluster
from tests.slurm.processes import search_path


class Meddler(Transport):
    """Intercepts the backend's commands: counts them, injects faults, and offsets the cluster's clock."""

    def __init__(self, inner: Transport, folder: Path) -> None:
        """`folder` stores the last output of squeue; the host of the commands can read it too."""
        self.listed = shlex.quote(str(folder / "listed"))
        self.inner = inner
        self.fault: Fault | None = None
        self.clock_seconds = 0
        self.calls = 0
        self.more: list[bytes] = []

    def command(self) -> list[str]:
        return self.inner.command()

    def environment(self) -> dict[str, str]:
        return self.inner.environment()

    @contextmanager
    def lines(self, program: str, deadline: Deadline) -> Iterator[Iterator[bytes]]:
        self.calls += 1
        if self.fault is Fault.ERROR:
            raise CommandFailed(1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        if self.fault is Fault.TIMEOUT:
            raise BackendUnavailable("the cluster's commands did not answer in time")
        if self.fault is Fault.SLOW:
            time.sleep(0.5)
        if self.fault is Fault.DOUBLED:
            with self.inner.lines(program, deadline) as lines:
                b"".join(lines)
        with self.inner.lines(self._squeue() + self._skewed(program), deadline) as lines:
            if self.fault is Fault.LOST_ANSWER:
                b"".join(lines)
                raise BackendUnavailable("the answer was lost")
            yield itertools.chain(lines, self.more) if self._lists(program) else lines

    def _squeue(self) -> str:
        """Return a shell function for squeue: with the fault, or one whose output is stored."""
        said = {
            Fault.EMPTY_LIST: "true",
            Fault.STALE_LIST: f"cat {self.listed}",
            None: f'command squeue "$@" >{self.listed} && cat {self.listed}',
        }.get(self.fault, 'command squeue "$@"')
        return f"squeue() {{ {said}; }}\n"

    @staticmethod
    def _lists(program: str) -> bool:
        """Return whether a program prints only the cluster's time and squeue's output."""
        return "date" in program and "squeue" in program

    def _skewed(self, program: str) -> str:
        """Offset `date` and the times that squeue prints."""
        if not self.clock_seconds or not self._lists(program):
            return program
        later = f"+= {self.clock_seconds}"
        shift = f"NF == 1 && $1 ~ /^[0-9]+$/ {{$1 {later}}} $8 ~ /^[0-9]+$/ {{$8 {later}}} 1"
        return f"({program}) | awk -F'|' -v OFS='|' '{shift}'"


class SlurmCase(Case):
    most_nodes = 4

    def __init__(self, cluster: SlurmCluster, signals: Path, **config: Any) -> None:
        self.cluster = cluster
        self.signals = signals
        self.use(PROGRAM, **config)

    def use(self, program: str, **config: Any) -> None:
        command = [sys.executable, "-c", program, str(self.signals)]
        backend = SlurmBackend(**self.cluster.config(command=command, **config))
        self.backend: SlurmBackend = backend
        self.meddler = Meddler(backend.client.files, self.signals)
        backend.client.files = self.meddler
        self.meddle(backend)

    def meddle(self, backend: SlurmBackend) -> None:
        assert isinstance(backend.client, CommandClient)
        backend.client._transport = self.meddler

    def faulty(self, fault: Fault) -> AbstractContextManager[None]:
        return self._faulty(fault)

    @contextmanager
    def _faulty(self, fault: Fault) -> Iterator[None]:
        self.meddler.fault = fault
        try:
            yield
        finally:
            self.meddler.fault = None

    @contextmanager
    def full(self) -> Iterator[None]:
        said = self.cluster.run(
            "sbatch", "--parsable", "--nodes=4", "--exclusive", "--partition=urgent", "--output=/dev/null",
            "--job-name=filler", text="#!/bin/sh\nexec sleep 600\n",
        )  # fmt: skip
        wait_until(lambda: "R" in self.cluster.run("squeue", "-h", "-n", "filler", "-o", "%t"), "it is full", 30)
        try:
            yield
        finally:
            self.cluster.run("scancel", said.strip())

    def lose_node(self, handle: Handle) -> bool:
        (node, *_) = self.observe(handle).nodes
        self.cluster.kill_node(node)
        return True

    def preempt(self, handle: Handle) -> bool:
        self.cluster.run(
            "sbatch", "--nodes=4", "--exclusive", "--partition=urgent", "--output=/dev/null",
            text="#!/bin/sh\nexec sleep 600\n",
        )  # fmt: skip
        return True

    def cancel_behind_our_back(self, handle: Handle) -> bool:
        self.cluster.run("scancel", handle.backend_id)
        return True

    @contextmanager
    def skew_clock(self, seconds: float) -> Iterator[None]:
        self.meddler.clock_seconds = int(seconds)
        try:
            yield
        finally:
            self.meddler.clock_seconds = 0

    def many(self, count: int) -> list[Handle]:
        """Lines of squeue behind the cluster's own: sbatch takes more than a minute for so many (see `make bench`)."""
        names = [self.plan().backend_name for _ in range(count)]
        self.meddler.more = [
            f"{number}|{name}|PENDING|0|0|0:00|1:00:00|N/A|N/A||Priority||\n".encode()
            for number, name in enumerate(names, 100_000)
        ]
        return [Handle(name) for name in names]

    def calls(self) -> int:
        return self.meddler.calls


class MeddlerOverHttp(httpx.BaseTransport):
    """The same between the backend and slurmrestd. Each fault is also one of the files' meddler."""

    def __init__(self, case: "SlurmRestCase", inner: httpx.BaseTransport) -> None:
        self.case = case
        self.inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        meddler = self.case.meddler
        meddler.calls += 1
        if meddler.fault is Fault.ERROR:
            return httpx.Response(503, text="trouble", request=request)
        if meddler.fault is Fault.TIMEOUT:
            raise httpx.ReadTimeout("no answer", request=request)
        if meddler.fault is Fault.SLOW:
            time.sleep(0.3)
        response = self.inner.handle_request(request)
        if meddler.fault is Fault.LOST_ANSWER:
            response.read()
            response.close()
            raise httpx.RemoteProtocolError("the answer was lost", request=request)
        if request.url.path.endswith(("/jobs", "/diag")) and (meddler.clock_seconds or meddler.more):
            return self._changed(response, request)
        return response

    def _changed(self, response: httpx.Response, request: httpx.Request) -> httpx.Response:
        answer = json.loads(response.read())
        response.close()
        for record in [*answer.get("jobs", []), answer.get("statistics", {})]:
            for name in ("start_time", "end_time", "submit_time", "req_time"):
                if record.get(name):
                    record[name] += self.case.meddler.clock_seconds
        answer.get("jobs", []).extend(self.case.more_jobs)
        return httpx.Response(200, json=answer, request=request)


class SlurmRestCase(SlurmCase):
    def __init__(self, cluster: SlurmCluster, signals: Path, url: str) -> None:
        self.more_jobs: list[dict[str, Any]] = []
        transport = {"kind": "rest", "url": url, "user": "root"}
        super().__init__(cluster, signals, transport=transport)

    def meddle(self, backend: SlurmBackend) -> None:
        assert isinstance(backend.client, RestClient)
        backend.client._http = httpx.Client(transport=MeddlerOverHttp(self, httpx.HTTPTransport()))

    def many(self, count: int) -> list[Handle]:
        handles = super().many(count)
        self.more_jobs = [
            {"job_id": number, "name": handle.backend_name, "user_name": "root", "job_state": "PENDING"}
            for number, handle in enumerate(handles, 100_000)
        ]
        return handles


@pytest.fixture(scope="session")
def slurm_rest_address(slurm_session: SlurmCluster) -> Iterator[str]:
    with slurm_session.rest() as url:
        yield url


@pytest.fixture
def slurm_rest(slurm: SlurmCluster, slurm_rest_address: str, tmp_path: Path) -> Iterator[SlurmCase]:
    signals = tmp_path / "signals"
    signals.mkdir()
    yield SlurmRestCase(slurm, signals, slurm_rest_address)
    (signals / "finish").write_text("0")


@pytest.fixture(scope="session")
def ssh_server(slurm_session: SlurmCluster) -> Iterator[dict[str, Any]]:
    why = ssh.missing()
    if why:
        pytest.skip(why)
    with ssh.ssh_server(slurm_session.folder / "ssh", {"PATH": search_path()}) as transport:
        yield transport


@pytest.fixture
def slurm_ssh(slurm: SlurmCluster, ssh_server: dict[str, Any], tmp_path: Path) -> Iterator[SlurmCase]:
    signals = tmp_path / "signals"
    signals.mkdir()
    yield SlurmCase(slurm, signals, transport=ssh_server)
    (signals / "finish").write_text("0")


@pytest.fixture
def slurm_commands(slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmCase]:
    signals = tmp_path / "signals"
    signals.mkdir()
    case = SlurmCase(slurm, signals)
    yield case
    (signals / "finish").write_text("0")
