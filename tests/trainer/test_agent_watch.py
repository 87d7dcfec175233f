"""Ranks end an agent that makes no progress."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import platform_run, tiny_training
from tests.trainer.test_agent_process import agent, workers_of
from trainer.resilience import agent_watch, progress
from trainer.resilience.shared_status import SharedStatus

AN_AGENT = """
import sys, time
from pathlib import Path
from trainer.resilience.shared_status import SharedStatus

status = SharedStatus(Path(sys.argv[1]), 1, create=True)
looks = float(sys.argv[2])
begin = time.monotonic()
while True:
    if time.monotonic() - begin < looks:
        status.report_agent_look()
    print("looking", flush=True)
    time.sleep(0.1)  # as an agent looks at intervals
"""


@contextmanager
def looking(folder: Path, seconds: float) -> Iterator[subprocess.Popen]:
    """A process that looks at its rank for that many seconds, and then only exists."""
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", AN_AGENT, str(folder / "status"), str(seconds)], stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("seconds", "because"),
    [
        pytest.param(1e9, "it has been stopped (SIGSTOP, or a debugger) for ", id="stopped"),
        pytest.param(1.0, "it has not looked at its ranks for ", id="stuck"),
    ],
)
def test_an_agent_without_progress_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, because: str
) -> None:
    monkeypatch.setattr(progress, "HANG_SECONDS", 1.0)
    monkeypatch.setattr(agent_watch, "AGENT_TIMEOUT", timedelta(seconds=3 if "looked" in because else 1e6))
    with looking(tmp_path, seconds) as process:
        agent_watch.watch_agent(SharedStatus(tmp_path / "status", 1), rank=0)
        if "stopped" in because:
            process.send_signal(signal.SIGSTOP)
        assert process.wait(60) == -signal.SIGKILL
    assert f"rank 0 kills the agent of this node: {because}" in (tmp_path / "agent.log").read_text()


@pytest.mark.slow
def test_a_run_ends_when_its_agent_is_stopped(tmp_path: Path) -> None:
    """The backend sees its end, as of any agent that is killed, and a new attempt can begin."""
    run, keys, objects = platform_run(tiny_training(steps=100_000), processes=2)
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path / "agent") as process:
        api.wait_for(lambda: len(api.losses()) > 10)
        workers = workers_of(process)
        process.send_signal(signal.SIGSTOP)
        assert process.wait(120) == -signal.SIGKILL
        for worker in workers:
            worker.wait(10)
    assert "(SIGSTOP, or a debugger)" in (tmp_path / "agent" / "agent.log").read_text()
