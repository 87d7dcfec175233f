"""Runs of several agents, each a process of its own, on nodes of a network or on this machine's loopback addresses."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.local.environment import REPOSITORY
from tests.chaos.faults.network import PLATFORM_ADDRESS, Network, network
from tests.chaos.faults.world import MAX_ATTEMPTS, Api, Finished, tiny_platform, training_of
from tests.trainer.agent_api import TOKEN
from trainer.contract import environment as names
from trainer.contract.run import EXIT_STATUS, EndClass

PHASE_SECONDS = 40
RUN_SECONDS = 300  # a limit for a run that hangs; one with a fault takes less than 90
_ENDS = {status: end_class for end_class, status in EXIT_STATUS.items()}


class Agents:
    """The agents of an attempt. `network`: None for loopback addresses."""

    def __init__(
        self,
        api: Api,
        folder: Path,
        nodes: int,
        network: Network | None,
        fault: tuple[str, str],
        phase_seconds: int = PHASE_SECONDS,
    ) -> None:
        """Start them. `fault`: kind and phase. `phase_seconds`: after which a phase without regular reports ends."""
        self.api, self._folder, self._network, self._phase_seconds = api, folder, network, phase_seconds
        self.works = [folder / f"node{index}" for index in range(nodes)]
        self.processes = [self._start(index, *fault) for index in range(nodes)]

    def _start(self, index: int, kind: str, phase: str) -> "subprocess.Popen[bytes]":
        here = self._network
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), names.AGENT_URL: self.api.url, names.ATTEMPT_TOKEN: TOKEN,
            names.NODE_INDEX: str(index), names.NODE_NAME: f"node{index}",
            names.NODE_ADDRESS: here.address(index) if here else f"127.0.0.{2 + index}",
            names.WORK_DIR: str(self.works[index]), "GLOO_SOCKET_IFNAME": "data" if here else "lo",
        }  # fmt: skip
        self.works[index].mkdir(parents=True)
        arguments = (str(self._folder.parent / "records"), kind, phase, str(self._phase_seconds))
        command = [sys.executable, "-m", "tests.chaos.faults.agent", *arguments]
        with (self.works[index].parent / f"log{index}").open("wb") as log:
            prefix = here.prefix(index) if here else []
            return subprocess.Popen([*prefix, *command], env=environment, stdout=log, stderr=log, cwd=REPOSITORY)

    def wait(self) -> list[EndClass]:
        """Return how the agents ended."""
        return [_ENDS.get(each.wait(RUN_SECONDS), EndClass.PROCESS_KILLED) for each in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def platform_on(here: Network | None, api: Api) -> Iterator[Api]:
    """Let the platform listen where the nodes reach it."""
    if here is None:
        with api:
            yield api
        return
    api.host = PLATFORM_ADDRESS
    with here.hub():
        api.__enter__()
    try:
        yield api
    finally:
        api.__exit__()


def run_on_two_nodes(folder: Path, kind: str, phase: str) -> Finished:
    """Run with a fault of the link of the second node ("": none) until an attempt is complete.

    A cut link works again when an agent has asked for another round, or after the attempt.
    """
    records = folder / "records"
    records.mkdir(parents=True)
    with network(2) as here, platform_on(here, tiny_platform(training_of(phase), 1, nodes=2)) as api:
        api.cause = {"cut": lambda: here.cut(1), "slow-link": lambda: here.slow(1)}.get(kind, lambda: None)
        api.on_second_round = lambda: here.heal(1)
        run = Finished(api, [], records, [])
        for number in range(1, MAX_ATTEMPTS + 1):
            api.begin_attempt(number)
            agents = Agents(api, folder / f"attempt{number}", 2, here, (kind, phase))
            try:
                run.ends.append(agents.wait()[0])
            finally:
                agents.kill()
                here.heal(1)
            run.works = agents.works
            if run.ends[-1] is EndClass.COMPLETED:
                break
        return run
