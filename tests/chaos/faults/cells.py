"""Runs cells of the table, and judges each by the checker and by what the table says."""

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.faults.check import findings
from tests.chaos.faults.table import LINKS, Cell, cell
from tests.chaos.faults.two_nodes import run_on_two_nodes
from tests.chaos.faults.world import Finished, run_on_one_node
from trainer.resilience.forking import start_fork_server


@dataclass(frozen=True)
class Result:
    """`verdict`: "ok", "failed", "impossible", or "skipped". `because`: the reason of a restart in place, or why
    the cell was not run. `problems`: of a failed one."""

    kind: str
    phase: str
    verdict: str
    because: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Cells:
    """Runs of cells in folders below `folder`; undisturbed runs are made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._undisturbed: dict[tuple[bool, bool], Finished] = {}

    def run(self, kind: str, phase: str) -> Result:
        """Run one cell."""
        expected = cell(kind, phase)
        if isinstance(expected, str):
            return Result(kind, phase, "impossible", expected)
        begin = time.monotonic()
        start: Callable[..., Finished] = run_on_two_nodes if kind in LINKS else run_on_one_node
        try:
            undisturbed = self._get_undisturbed(start, phase)
            run = start(Path(tempfile.mkdtemp(prefix=f"{kind}-{phase}-", dir=self._folder)), kind, phase)
        except pytest.skip.Exception as skipped:
            return Result(kind, phase, "skipped", str(skipped))
        problems = judge(run, undisturbed, expected)
        verdict = "failed" if problems else "ok"
        reasons = [event["because"] for event in run.api.events("generation.started")]
        because = "; ".join(dict.fromkeys(reasons))
        return Result(kind, phase, verdict, because, time.monotonic() - begin, problems)

    def _get_undisturbed(self, start: Callable[..., Finished], phase: str) -> Finished:
        key = (start is run_on_two_nodes, phase == "compile")
        if key not in self._undisturbed:
            folder = Path(tempfile.mkdtemp(prefix="undisturbed-", dir=self._folder))
            run = start(folder, "", phase)
            problems = judge(run, run, Cell())
            if problems:
                raise RuntimeError(f"the undisturbed run is not as it should be: {problems}")
            self._undisturbed[key] = run
        return self._undisturbed[key]


def judge(run: Finished, undisturbed: Finished, expected: Cell) -> list[str]:
    """Return what is wrong with a run, by the checker and by what is expected."""
    found = findings(run, undisturbed, is_exact=expected.is_exact)
    ends = [end.value for end in run.ends]
    wanted = [expected.first_end] if expected.first_end == "completed" else [expected.first_end, "completed"]
    if ends != wanted:
        found.append(f"the attempts ended with {ends} instead of {wanted}: {[end['message'] for end in run.api.ends]}")
    reasons = list(dict.fromkeys(event["because"] for event in run.api.events("generation.started")))
    if expected.because is None and reasons:
        found.append(f"restarted in place: {reasons}")
    if expected.because is not None and not any(re.search(expected.because, reason) for reason in reasons):
        found.append(f"no restart because of /{expected.because}/, but {reasons}")
    found += [f"no event {kind}" for kind in expected.events if not run.api.events(kind)]
    blamed = [event["rank"] for event in run.api.events("rank.slow") if "rank.slow" in expected.events]
    found += [f"rank {rank} was called slow" for rank in blamed if rank != 1]
    return found


_cells: Cells | None = None


def prepare(folder: Path) -> None:
    """Prepare a process of a pool for `run_cell`: it makes undisturbed runs of its own."""
    global _cells
    start_fork_server()
    _cells = Cells(folder)


def run_cell(pair: tuple[str, str]) -> Result:
    """Run the cell of a kind and a phase."""
    assert _cells is not None, "prepared"
    return _cells.run(*pair)
