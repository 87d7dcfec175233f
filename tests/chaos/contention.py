"""Sixteen processes submit, admit, run, finish, cancel, pause, and change quotas at once, and are killed on the way.

`python -m tests.chaos.contention --seeds 1000` plays as many short scenes; `--minutes 3` one long one. After each the
event log is read: no admission may have gone above a pool, a quota, a limit or a hard budget at its own instant, and
at the end what is held is what the live attempts hold. Exit status 1 when something is found, with its seed.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from tests import stores

PROCESSES, FEWER = 16, 8  # in a long scene, and in a short one, in which more would only wait
SCENE_SECONDS = 0.6
KILLED_IN_A_SCENE = 1
LOG_TABLE = "chaos_trees"


@dataclass
class Found:
    """What scenes have come to. Problems begin with their seed."""

    seeds: int = 0
    admitted: int = 0
    finished: int = 0
    reclaimed: int = 0
    edits: int = 0
    killed: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.seeds} seeds: {self.admitted} admissions, {self.finished} ends, {self.reclaimed} reclaimed, "
            f"{self.edits} changes of quotas, {self.killed} processes killed, {len(self.problems)} problems"
        )


class Process:
    """A child with connections of its own, forked from a parent that has none. It works off tasks one by one, and is
    kept for many scenes: a fresh one spends its first second on warming up."""

    _open: ClassVar[set[IO[str]]] = set()  # the parent's ends: a child that kept one would keep its sibling alive

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            self._file = mine.makefile("rw")
            self._open.add(self._file)
            mine.close()
            return
        mine.close()
        for file in self._open:
            file.close()
        try:
            with suppress(KeyboardInterrupt, OSError), theirs.makefile("rw") as file:
                for line in file:
                    file.write(json.dumps(_answer(json.loads(line))) + "\n")
                    file.flush()
        finally:
            os._exit(0)  # whatever happens: what comes next is the parent's

    def begin(self, task: str, *arguments: Any) -> None:
        self._file.write(json.dumps([task, *arguments]) + "\n")
        self._file.flush()

    def result(self) -> Any:
        """What the task has brought; None when the process was killed."""
        line = self._file.readline()
        return json.loads(line) if line else None

    def ask(self, task: str, *arguments: Any) -> Any:
        self.begin(task, *arguments)
        return self.result()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        self._open.discard(self._file)
        self._file.close()
        os.waitpid(self.pid, 0)


def _answer(task: list[Any]) -> Any:
    from tests.chaos import contention_world as world

    try:
        return getattr(world, task[0])(*task[1:])
    except BaseException:  # noqa: BLE001 - the parent prints it
        return {"error": traceback.format_exc()[-4000:]}


class Crew:
    """The processes of all scenes, and one that makes the worlds and looks at their logs."""

    def __init__(self, processes: int = PROCESSES) -> None:
        stores.start()
        from tests.chaos import contention_world  # noqa: F401 - read once, before the forks

        self._judge = Process()
        made = self._judge.ask("make_tables")
        if "error" in made:
            raise RuntimeError(made["error"])
        self._workers = [Process() for _ in range(processes)]

    def plant(self) -> None:
        """A fault in every process that lives now."""
        for worker in self._workers:
            planted = worker.ask("plant")
            if planted is None or "error" in planted:
                raise RuntimeError(f"the fault could not be planted: {planted and planted['error']}")

    def scene(self, seed: int, seconds: float, killed: int) -> Found:
        """One world made from `seed`, then everybody at work in it for `seconds`; `killed` of them are killed."""
        chance = random.Random(seed)
        found = Found(1, killed=killed)
        made = self._judge.ask("prepare", seed)
        if "error" in made:
            found.problems.append(f"{seed}: the world could not be made: {made['error']}")
            return found
        began = time.time()
        for number, worker in enumerate(self._workers):
            worker.begin("work", seed * 1000 + number, began + seconds)
        for number, moment in enumerate(sorted(chance.uniform(0, seconds) for _ in range(killed))):
            time.sleep(max(0.0, began + moment - time.time()))
            place = chance.randrange(len(self._workers))
            self._workers[place].kill()
            self._workers[place] = Process()
            self._workers[place].begin("work", seed * 1000 + len(self._workers) + number, began + seconds)
        for worker in self._workers:
            told = worker.result()
            if told is None or "error" in told:
                found.problems.append(f"{seed}: a process failed: {told and told['error']}")
        checked = self._judge.ask("check")
        if "error" in checked:
            found.problems.append(f"{seed}: the check failed: {checked['error']}")
            return found
        found.problems += [f"{seed}: {problem}" for problem in checked.pop("problems")]
        for name, count in checked.items():
            setattr(found, name, count)
        return found

    def end(self) -> None:
        """The stores, which go last, would wait for sessions that are still open."""
        for process in [*self._workers, self._judge]:
            process.end()


def added(total: Found, one: Found) -> None:
    for name, value in asdict(one).items():
        setattr(total, name, getattr(total, name) + value)


def play(crew: Crew, seeds: range, seconds: float, killed: int, say: Callable[[str], None] = print) -> Found:
    total = Found()
    for seed in seeds:
        one = crew.scene(seed, seconds, killed)
        added(total, one)
        for problem in one.problems:
            say(problem)
        if total.seeds % 50 == 0:
            say(total.line())
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many short scenes")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes", type=float, default=0.0, help="then one long scene")
    parser.add_argument("--plant", action="store_true", help="with a fault in every process, which must be found")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    crew = Crew(FEWER)
    if arguments.plant:
        crew.plant()
    try:
        total = play(crew, seeds, SCENE_SECONDS, KILLED_IN_A_SCENE)
    finally:
        crew.end()
    print(f"short scenes: {total.line()}")
    figures, problems = {"short": asdict(total)}, list(total.problems)
    if arguments.minutes:
        crew = Crew(PROCESSES)
        try:
            long = crew.scene(arguments.first, arguments.minutes * 60, int(arguments.minutes * 20))
        finally:
            crew.end()
        print(f"one scene of {arguments.minutes:g} minutes: {long.line()}")
        for problem in long.problems:
            print(problem)
        problems += long.problems
        figures["long"] = asdict(long)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
