"""`make chaos`: jobs flow while parts of the platform die, then the record is held against what really happened.

`--seed` repeats a run's script: its jobs, the faults of its backend and its outages. Prints the zeros and the times
to recover; exit status 1 when a zero is none.
"""

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from deploy.local.environment import REPOSITORY
from deploy.local.handle import StackHandle, wait_until
from tests.chaos import script
from tests.chaos.checker import Findings, Shown, check
from tests.chaos.ledger import Ledger
from tests.chaos.outages import Recovery, freeze_and_recover, kill_and_recover
from tests.chaos.script import JobScript, Outage, Twist
from tests.chaos.user import User
from tests.chaos.world import Plants, World

FIRST_PROBE = 1_000_000
PROBES = 200
PROBE_SLOTS = 4
AGENTS_END_WITHIN_SECONDS = 60.0
RESULTS = REPOSITORY / "test-results" / "chaos.json"


@dataclass(frozen=True)
class Plan:
    seed: int
    jobs: int = 200
    slots: int = 16
    tick_seconds: float = 0.8
    fewest_steps: int = 4
    most_steps: int = 14
    latest_twist_seconds: float = 20.0
    outages_for_seconds: float = 480.0
    submit_for_seconds: float = 400.0
    down_seconds: tuple[float, ...] = (0.0, 20.0, 60.0)
    gap_seconds: float = 3.0
    drain_seconds: float = 300.0
    plants: Plants = field(default_factory=Plants)


@dataclass
class Result:
    findings: Findings
    submitted: int
    attempts: int
    faults: dict[str, int]
    ends: dict[str, int]
    healthy_seconds: float
    recoveries: list[Recovery]
    slowest_end_seconds: float
    seconds: float

    def lines(self) -> list[str]:
        rows = [f"  {'submitted':<16} {self.submitted}   ({self.attempts} attempts, ended {_counted(self.ends)})"]
        rows += [f"  {name.replace('_', ' '):<16} {count}" for name, count in self.findings.counts().items()]
        rows.append(f"  faults of the backend: {_counted(self.faults)}")
        rows.append(f"  a probe from submit to success: {self.healthy_seconds:.1f} s when nothing is wrong")
        for recovery in self.recoveries:
            rows.append(
                f"  {recovery.service:<9} {'frozen' if recovery.frozen else 'killed'}, {recovery.down_seconds:2.0f} s: "
                f"a probe succeeded {recovery.seconds:5.1f} s after its return"
            )
        rows.append(f"  longest from the end of an agent to the end of its job: {self.slowest_end_seconds:.1f} s")
        return rows


class Run:
    """One run on a stack that is up. `say` gets a line now and then."""

    def __init__(self, stack: StackHandle, plan: Plan, say: Callable[[str], None] = print) -> None:
        self._stack, self._plan, self._say = stack, plan, say
        self._closing = threading.Event()
        self._ledger = Ledger()
        self._user = User(stack, self._ledger, self._closing)
        self._jobs = script.jobs(plan.seed, plan.jobs, plan.fewest_steps, plan.most_steps, plan.latest_twist_seconds)
        probes = (JobScript(FIRST_PROBE + n, 1, (), Twist.NONE, 0.0, 0.0) for n in range(PROBES))
        self._probes = {probe.number: probe for probe in probes}
        self._next_probe = iter(self._probes.values())

    def execute(self) -> Result:
        plan, began = self._plan, time.monotonic()
        scripts = {job.number: job for job in self._jobs}
        world = World(self._ledger, scripts, seed=plan.seed, tick_seconds=plan.tick_seconds, plants=plan.plants)
        calm = World(self._ledger, self._probes, seed=None, tick_seconds=0.05)
        try:
            prepare(self._stack, {"chaos": (world, plan.slots), "calm": (calm, PROBE_SLOTS)})
            healthy = self._timed_probe()
            recoveries = self._flow(began)
            world.calm_down()
            self._drain()
            shown = {wanted.id: self._user.look(wanted.id) for wanted in self._ledger.jobs if wanted.id}
            return Result(
                findings=check(self._ledger, shown, self._user.jobs_listed(), self._user.feed()),
                submitted=len(self._ledger.jobs),
                attempts=len(self._ledger.lives),
                faults=dict(world.injected),
                ends=_counts(life.end for life in self._ledger.lives),
                healthy_seconds=healthy,
                recoveries=recoveries,
                slowest_end_seconds=_slowest_end(self._ledger, shown),
                seconds=time.monotonic() - began,
            )
        finally:
            self._closing.set()
            world.close()
            calm.close()

    def _flow(self, began: float) -> list[Recovery]:
        with ThreadPoolExecutor(len(self._jobs)) as pool:
            try:
                flow = [pool.submit(self._follow, job) for job in self._jobs]
                recoveries = self._break_things(began)
                self._say("no more outages; waiting for the jobs to end")
                for follower in flow:
                    follower.result()
            except BaseException:
                self._closing.set()  # the followers would wait for ever, and the pool for them
                raise
        return recoveries

    def _follow(self, job: JobScript) -> None:
        """One job's user, from the submit to whatever they want of it on the way."""
        self._closing.wait(job.number * self._plan.submit_for_seconds / len(self._jobs))
        wanted = self._user.submit(job, "chaos")
        if job.twist is Twist.NONE:
            return
        self._closing.wait(job.twist_after_seconds)
        if job.twist is Twist.CANCEL:
            self._user.cancel(wanted)
        else:
            self._user.pause(wanted)
            self._closing.wait(job.twist_after_seconds / 2)
            self._user.resume(wanted)

    def _break_things(self, began: float) -> list[Recovery]:
        plan = self._plan
        if not plan.down_seconds:
            return []
        recoveries: list[Recovery] = []
        for outage in itertools.cycle(script.outages(plan.seed, plan.down_seconds, plan.gap_seconds)):
            left = plan.outages_for_seconds - (time.monotonic() - began)
            if outage.after_seconds + outage.down_seconds > left:
                return recoveries
            recoveries.append(self._outage(outage))
        return recoveries

    def _outage(self, outage: Outage) -> Recovery:
        self._closing.wait(outage.after_seconds)
        end = freeze_and_recover if outage.frozen else kill_and_recover
        recovery = end(self._stack, outage.service, outage.down_seconds, pause=self._closing.wait, works=self._probe)
        self._say(
            f"{outage.service} {'frozen' if outage.frozen else 'killed'}, {outage.down_seconds:.0f} s, "
            f"works again after {recovery.seconds:.1f} s"
        )
        return recovery

    def _probe(self) -> None:
        self._user.run_to_the_end(next(self._next_probe), "calm")

    def _timed_probe(self) -> float:
        self._probe()  # the first warms up what is loaded on first use
        began = time.monotonic()
        self._probe()
        return time.monotonic() - began

    def _drain(self) -> None:
        """What has not ended by then is found by the checker as forgotten."""
        with suppress(AssertionError):
            wait_until(lambda: not self._user.unfinished(), "every job has ended", self._plan.drain_seconds)
        with suppress(AssertionError):
            wait_until(lambda: not self._ledger.living(), "every agent has ended", AGENTS_END_WITHIN_SECONDS)


def prepare(stack: StackHandle, worlds: dict[str, tuple[World, int]]) -> None:
    words = [f"{name}={world.address}={slots}" for name, (world, slots) in worlds.items()]
    known = dict(shlex.split(line)[-1].split("=", 1) for line in stack.run("env").stdout.splitlines())
    result = subprocess.run(
        [sys.executable, "-m", "tests.chaos.prepare", *words],
        cwd=REPOSITORY,
        env={**stack.environment, **known, "PYTHONPATH": f"{REPOSITORY / 'platform'}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the clusters could not be made: {result.stderr}")


def _slowest_end(ledger: Ledger, shown: dict[str, Shown]) -> float:
    ended: dict[str, float] = {}
    for life in ledger.lives:
        ended[life.job_id] = max(ended.get(life.job_id, 0.0), life.ended_at)
    return max(
        (
            datetime.fromisoformat(found.job["finished_at"]).timestamp() - ended[job_id]
            for job_id, found in shown.items()
            if job_id in ended and found.job["finished_at"]
        ),
        default=0.0,
    )


def _counts(words: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for word in words:
        counted[word or "alive"] = counted.get(word or "alive", 0) + 1
    return dict(sorted(counted.items()))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=200)
    options = parser.parse_args()
    seconds = options.minutes * 60
    plan = Plan(
        seed=options.seed,
        jobs=options.jobs,
        outages_for_seconds=seconds * 0.95,
        submit_for_seconds=seconds * 0.7,
    )
    load = os.getloadavg()[0]
    print(f"seed {plan.seed}, {options.minutes:g} minutes, {os.cpu_count()} cores, load {load:.1f} before", flush=True)
    with tempfile.TemporaryDirectory(prefix="athanor-chaos-") as folder:
        Path(folder).chmod(0o755)  # under root PostgreSQL runs as another user
        stack = StackHandle(Path(folder) / "data")
        stack.up()
        try:
            result = Run(stack, plan, lambda line: print(f"  .. {line}", flush=True)).execute()
        finally:
            stack.down()
    print("\n".join(result.lines()))
    RESULTS.parent.mkdir(exist_ok=True)
    figures = {**vars(result), "findings": vars(result.findings), "recoveries": [vars(r) for r in result.recoveries]}
    RESULTS.write_text(json.dumps({"seed": plan.seed, "load_before": load, **figures}, indent=2) + "\n")
    found = result.findings.all()
    print("\n".join(found[:50]))
    print(f"{len(found)} findings; `--seed {plan.seed}` repeats the script")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
