"""Random kills: six processes over three agents, of which any process may be killed or stopped at any time."""

import contextlib
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.faults.check import children, findings
from tests.chaos.faults.network import Network, network
from tests.chaos.faults.two_nodes import Agents, platform_on
from tests.chaos.faults.world import Finished, tiny_platform
from tests.trainer.runs import tiny_training
from trainer.contract.run import EndClass

NODES, PER_NODE = 3, 2
STEPS = 90
TOKENS_PER_STEP = 192  # a sequence for each rank
KILLS_OF_A_RUN = 4
GAP_SECONDS = (0.2, 4.0)  # between the first step that a worker group reports and a kill
MAX_ATTEMPTS = 8
MAX_RESTARTS = 20
PHASE_SECONDS = 120  # three agents that load torch share the cores of one machine
TARGETS = ("rank", "rank", "rank", "fork server", "store", "agent")
EXPECTED_REASONS = re.compile(
    r"^rank \d+ was killed (by SIGKILL|together with the fork server)"
    r"|^the process of the rendezvous store was killed$"
    r"|is stopped \(SIGSTOP"
    r"|^no progress for \d+ s in phase \w+: (rank \d+ waits|\d+ ranks)"
    r"|^rank \d+: .*(closed by (remote )?peer|[Cc]onnection (reset|refused|was likely closed)|[Bb]roken pipe|timed out|"
    r"failed to recv)"
    r"|^another node started a new rendezvous round"
)
"""What a restart may be because of: each names what was killed or stopped, or that a peer was lost."""


@dataclass(frozen=True)
class Kill:
    """`target` of `node` got `signal`, when its run had reported `step`."""

    node: int
    target: str
    signal: str
    step: int


@dataclass
class KilledRun:
    """A run under kills, and what is wrong with it."""

    kills: list[Kill] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_kills(folder: Path, minutes: float, seed: int) -> Iterator[KilledRun]:
    """Yield runs with random kills for so long."""
    chosen, until = random.Random(seed), time.monotonic() + 60.0 * minutes
    if minutes <= 0:
        return
    undisturbed, _ = run_with_kills(Path(tempfile.mkdtemp(prefix="undisturbed-", dir=folder)), None)
    while time.monotonic() < until:
        begin = time.monotonic()
        run, killed = run_with_kills(Path(tempfile.mkdtemp(prefix="kills-", dir=folder)), chosen)
        killed.problems = judge(run, undisturbed, killed)
        killed.seconds = time.monotonic() - begin
        yield killed


def run_with_kills(folder: Path, chosen: random.Random | None) -> tuple[Finished, KilledRun]:
    """Run until an attempt is complete, with kills as `chosen`; None: without any."""
    records = folder / "records"
    records.mkdir(parents=True)
    training, killed = tiny_training(steps=STEPS, tokens_per_step=TOKENS_PER_STEP), KilledRun()
    api = tiny_platform(training, PER_NODE, nodes=NODES, max_restarts_in_place=MAX_RESTARTS)
    run = Finished(api, [], records, [])
    with _nodes() as here, platform_on(here, api):
        for attempt in range(1, MAX_ATTEMPTS + 1):
            api.begin_attempt(attempt)
            agents = Agents(api, folder / f"attempt{attempt}", NODES, here, ("", ""), PHASE_SECONDS)
            over = threading.Event()
            killer = threading.Thread(target=_kill_now_and_then, args=(agents, chosen, killed, over))
            killer.start()
            try:
                ends = agents.wait()
            finally:
                over.set()
                killer.join()
                agents.kill()
            run.works = agents.works
            run.ends.append(next((end for end in ends if end is not EndClass.COMPLETED), EndClass.COMPLETED))
            if run.ends[-1] is EndClass.COMPLETED:
                break
    killed.ends = [end.value for end in run.ends]
    killed.reasons = [event["because"] for event in api.events("generation.started")]
    return run, killed


def judge(run: Finished, undisturbed: Finished, killed: KilledRun) -> list[str]:
    """Return what is wrong with a run. Its mesh is that of the undisturbed one, and so must be all bits."""
    if run.ends[-1] is not EndClass.COMPLETED:
        return [f"no attempt was complete: {killed.ends}"]
    run.ends = run.ends[-1:]  # an agent that was killed reports nothing
    wrong = [reason for reason in killed.reasons if not EXPECTED_REASONS.search(reason)]
    return [*findings(run, undisturbed), *(f"not because of a kill: {reason}" for reason in wrong)]


@contextlib.contextmanager
def _nodes() -> Iterator[Network | None]:
    """Namespaces where this user may make them, else None, for loopback addresses."""
    with contextlib.ExitStack() as stack:
        try:
            here: Network | None = stack.enter_context(network(NODES))
        except pytest.skip.Exception:
            here = None
        yield here


def _kill_now_and_then(agents: Agents, chosen: random.Random | None, killed: KilledRun, over: threading.Event) -> None:
    if chosen is None:
        return
    reported = len(agents.api.points())
    while len(killed.kills) < KILLS_OF_A_RUN and not over.wait(0.1):
        if len(agents.api.points()) == reported or over.wait(chosen.uniform(*GAP_SECONDS)):
            continue
        reported = len(agents.api.points())
        node, target = chosen.randrange(NODES), chosen.choice(TARGETS)
        number = signal.SIGKILL if target == "agent" else chosen.choice((signal.SIGKILL, signal.SIGSTOP))
        pid = _find(agents.processes[node].pid, target, chosen)
        if pid is None:
            continue
        killed.kills.append(Kill(node, target, number.name, max(agents.api.losses(), default=0)))
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, number)
        if target == "agent":  # the platform ends the attempt of a lost agent
            agents.api.over = True
            return


def _find(agent: int, target: str, chosen: random.Random) -> int | None:
    """Return the pid of such a process of an agent. A fork server's first child that stays is the store."""
    if target == "agent":
        return agent
    for server in children(agent):
        with contextlib.suppress(OSError):
            if "forkserver" in Path(f"/proc/{server}/cmdline").read_text():
                if target == "fork server":
                    return server
                found = sorted(children(server))
                return (found[0] if target == "store" else chosen.choice(found[1:])) if len(found) > 1 else None
    return None
