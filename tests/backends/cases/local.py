"""The local backend: no connection to inject faults into, one node, no preemption."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from athanor.backends.base import Handle
from athanor.backends.local import folder
from athanor.backends.local.backend import LocalBackend
from tests.backends.cases.base import PROGRAM, Case, Fault


class LocalCase(Case):
    def __init__(self, root: Path, program: str = PROGRAM) -> None:
        self.signals = root / "signals"
        self.signals.mkdir()
        self.root = root / "jobs"
        self.use(program)

    def use(self, program: str) -> None:
        command = (sys.executable, "-c", program, str(self.signals))
        self.backend = LocalBackend(str(self.root), command=command, kill_after_seconds=0.3)

    def faulty(self, fault: Fault) -> None:
        return None

    def cancel_behind_our_back(self, handle: Handle) -> bool:
        (agent,) = self.shim_of(handle).children()
        agent.kill()
        return True

    def shim_of(self, handle: Handle) -> psutil.Process:
        return psutil.Process(int((self.root / handle.backend_name / folder.STARTED).read_text().split()[0]))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCase]:
    case = LocalCase(tmp_path)
    yield case
    (case.signals / "finish").write_text("0")
