"""Metrics in MLflow and TensorBoard, read back by their own packages; and what a tool that is away costs a run."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import TINY, FinishedRun, platform_run, tiny_training
from tests.trainer.test_agent_process import agent
from tests.trainer.test_standalone import ROOT, write_job
from trainer.contract.run import EXIT_STATUS, EndClass, MetricPoint
from trainer.contract.telemetry import MlflowSpec, TelemetrySpec
from trainer.reporting.sinks import sink_queue as feeding
from trainer.reporting.sinks.event_files import EventFiles
from trainer.reporting.sinks.sink_queue import SinkQueue


def standalone(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer", "job.yaml", "--output", "out", "--data", "text.txt", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_ALLOW_FILE_STORE": "true"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def scalars(folder: Path, tag: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {event.step: event.value for event in found.Scalars(tag)}


def test_a_run_and_its_resumption_are_one_curve_in_both_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = f"file://{tmp_path / 'mlruns'}"
    for steps in (12, 16):
        changes = {"training": {**TINY, "steps": steps}, "telemetry": {"mlflow": {"tracking_uri": store}}}
        write_job(tmp_path, **changes, resources={"processes_per_node": 1})
        ended = standalone(tmp_path, "--tensorboard")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "sink." not in ended.stdout
    expected = FinishedRun(EndClass.COMPLETED, tmp_path / "out").series("train/loss")
    assert sorted(expected) == list(range(1, 17))
    assert scalars(tmp_path / "out/tensorboard", "train/loss") == pytest.approx(expected)

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("athanor").experiment_id])
    assert (run.info.run_name, run.info.status) == ("tiny", "FINISHED")
    assert run.data.params["steps"] == "12"
    assert run.data.params["schedule.warmup_steps"] == "4"
    logged = client.get_metric_history(run.info.run_id, "train/loss")
    assert {metric.step: metric.value for metric in logged} == pytest.approx(expected)


class Refusing(BaseHTTPRequestHandler):
    """An MLflow server that lets nobody in, and quotes what it was sent."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization", ""))
        content = f"no tables, {self.asked[-1]}".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Requests are no news in a test's output."""


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_an_mlflow_server_that_refuses_costs_its_points_and_one_event(tmp_path: Path, refusing: str) -> None:
    """It is shown the team's token, and nobody else is."""
    telemetry = TelemetrySpec(mlflow=MlflowSpec(tracking_uri=refusing))
    run, keys, objects = platform_run(tiny_training(), telemetry=telemetry, outbound_allow="127.0.0.1")
    keys = keys.model_copy(update={"secrets": {"mlflow-tracking-token": "CANARY-of-the-team"}})
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path / "work") as process:
        assert process.wait(120) == EXIT_STATUS[EndClass.COMPLETED]
        assert sorted(api.losses()) == list(range(1, 21))
        (failed,) = api.events("sink.failed")
        assert failed["sink"] == "mlflow"
        assert "no tables" in failed["because"]
        assert "CANARY" not in failed["because"]
        (incomplete,) = api.events("sink.incomplete")
        assert incomplete["points_lost"] == len(api.points())
    assert set(Refusing.asked) == {"Bearer CANARY-of-the-team"}
    assert "CANARY" not in (tmp_path / "work/agent.log").read_text()


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("127.0.0.1", marks=pytest.mark.slow),
        "localhost",
        pytest.param("nowhere.invalid", marks=pytest.mark.slow),
    ],
)
def test_an_address_inside_is_not_connected_to_unless_an_administrator_allows_it(
    tmp_path: Path, refusing: str, host: str
) -> None:
    """Neither the address nor the credentials of the team reach it, and a name reveals nothing about the network."""
    port = refusing.rpartition(":")[2]
    Refusing.asked.clear()
    telemetry = TelemetrySpec(mlflow=MlflowSpec(tracking_uri=f"https://{host}:{port}"))
    run, keys, objects = platform_run(tiny_training(), telemetry=telemetry)
    keys = keys.model_copy(update={"secrets": {"mlflow-tracking-token": "CANARY-of-the-team"}})
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path / "work") as process:
        assert process.wait(120) == EXIT_STATUS[EndClass.COMPLETED]
        (failed,) = api.events("sink.failed")
    expected = "is not a public address" if host == "127.0.0.1" else f"{host} does not resolve to a public address"
    assert expected in failed["because"]
    assert Refusing.asked == []


class Moving(BaseHTTPRequestHandler):
    """A public server that sends its clients elsewhere."""

    elsewhere: ClassVar[str] = ""

    def do_GET(self) -> None:
        self.send_response(307)
        self.send_header("Location", self.elsewhere + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Requests are no news in a test's output."""


@pytest.mark.slow
def test_a_redirect_to_an_address_inside_is_not_followed(tmp_path: Path, refusing: str) -> None:
    Refusing.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moving)
    Moving.elsewhere = refusing.replace("127.0.0.1", "127.0.0.2")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    telemetry = TelemetrySpec(mlflow=MlflowSpec(tracking_uri=f"http://127.0.0.1:{server.server_address[1]}"))
    run, keys, objects = platform_run(tiny_training(), telemetry=telemetry, outbound_allow="127.0.0.1")
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path / "work") as process:
        assert process.wait(120) == EXIT_STATUS[EndClass.COMPLETED]
        assert len(api.events("sink.failed")) == 1
    server.shutdown()
    server.server_close()
    assert Refusing.asked == []


class Slow:
    """A tool that takes its points only when it is let go on, and refuses the first `fails` times."""

    name = "slow"

    def __init__(self, fails: int = 0) -> None:
        self.go_on, self.took = threading.Event(), threading.Event()
        self.fails = fails
        self.steps: list[int] = []
        self.closed: EndClass | None = None

    def open(self) -> None:
        """Nothing to open."""

    def write(self, points: list[MetricPoint]) -> None:
        assert self.go_on.wait(30)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("away")
        self.steps += [point.step for point in points]
        self.took.set()

    def close(self, end_class: EndClass) -> None:
        self.closed = end_class


def point(step: int) -> MetricPoint:
    return MetricPoint(step=step, time=datetime(2026, 1, 1, tzinfo=UTC), values={"train/loss": float(step)})


@contextmanager
def fed(sink: Slow) -> Iterator[tuple[SinkQueue, list[tuple[str, dict[str, Any]]]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    try:
        yield SinkQueue(sink, lambda kind, **data: events.append((kind, data))), events
    finally:
        sink.go_on.set()


def test_offering_points_does_not_wait_for_the_sink_and_losses_are_reported() -> None:
    sink = Slow()
    with fed(sink) as (feed, events):
        for step in range(150):
            feed.offer([point(step)])  # would never return if it waited for the sink
        assert not sink.steps
        feed.finish(EndClass.COMPLETED, 0.0)
        assert events == [("sink.incomplete", {"sink": "slow", "points_lost": 150})]


def test_what_does_not_fit_goes_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "MAX_QUEUED_POINTS", 100)
    sink = Slow()
    with fed(sink) as (feed, events):
        feed.offer([point(step) for step in range(150)])
        sink.go_on.set()
        feed.finish(EndClass.STOPPED, 30.0)
        assert sink.steps == list(range(50, 150))
        assert sink.closed is EndClass.STOPPED
        assert events == [("sink.incomplete", {"sink": "slow", "points_lost": 50})]


def test_refused_points_are_offered_again_and_the_failure_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "SECONDS_AFTER_FAILURE", 0.01)
    monkeypatch.setattr(feeding, "POLL_SECONDS", 0.01)
    sink = Slow(fails=3)
    with fed(sink) as (feed, events):
        feed.offer([point(step) for step in range(5)])
        sink.go_on.set()
        assert sink.took.wait(30)
        feed.finish(EndClass.COMPLETED, 30.0)
        assert (sink.steps, sink.closed) == (list(range(5)), EndClass.COMPLETED)
        assert events == [("sink.failed", {"sink": "slow", "because": "ConnectionError: away"})]


def test_steps_done_again_by_new_processes_replace_what_the_old_ones_wrote(tmp_path: Path) -> None:
    sink = EventFiles(tmp_path)
    sink.open()
    old = [point(step) for step in (1, 2, 3, 4)]
    again = [
        point(step).model_copy(update={"generation": 1, "values": {"train/loss": 10.0 * step}}) for step in (3, 4, 5)
    ]
    sink.write(old)
    sink.write(again)
    sink.close(EndClass.COMPLETED)
    assert scalars(tmp_path, "train/loss") == {1: 1.0, 2: 2.0, 3: 30.0, 4: 40.0, 5: 50.0}


def test_a_wrong_field_of_the_sinks_is_named(tmp_path: Path) -> None:
    write_job(tmp_path, telemetry={"mlflow": {"uri": "http://x"}})
    ended = standalone(tmp_path)
    assert ended.returncode == EXIT_STATUS[EndClass.BAD_SPEC]
    assert "telemetry.mlflow.tracking_uri: Field required" in ended.stderr
    assert "telemetry.mlflow.uri: Extra inputs are not permitted (it is 'http://x')" in ended.stderr
