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
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import stores

PROCESSES = 16
SCENE_SECONDS = 0.6
KILLED_IN_A_SCENE = 2
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


def forked(work: Callable[[], Any]) -> tuple[int, int]:
    """Run `work` in a child that has no connection yet; its result comes as JSON through a pipe. (pid, pipe)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    status = 0
    try:
        os.write(writing, json.dumps(work()).encode())
    except BaseException:  # noqa: BLE001 - the parent prints it
        os.write(writing, json.dumps({"error": traceback.format_exc()[-4000:]}).encode())
        status = 1
    os._exit(status)


def result(pid: int, pipe: int) -> Any:
    """What a child brought; None when it was killed."""
    with os.fdopen(pipe, "rb") as stream:
        content = stream.read()
    os.waitpid(pid, 0)
    return json.loads(content) if content else None


def in_child(work: Callable[[], Any]) -> Any:
    return result(*forked(work))


def scene(seed: int, seconds: float, killed: int, processes: int = PROCESSES) -> Found:
    """One world made from `seed`, then `processes` at work in it for `seconds`; `killed` of them are killed."""
    from tests.chaos import contention_world as world

    chance = random.Random(seed)
    made = in_child(lambda: world.prepare(seed))
    if "error" in made:
        return Found(1, problems=[f"{seed}: the world could not be made: {made['error']}"])
    until = time.time() + seconds
    workers = [forked(_worker(seed, number, until)) for number in range(processes)]
    killings = sorted(chance.uniform(0, seconds) for _ in range(killed))
    found = Found(1, killed=killed)
    began = until - seconds
    for number, moment in enumerate(killings):
        time.sleep(max(0.0, began + moment - time.time()))
        place = chance.randrange(processes)
        pid, pipe = workers[place]
        os.kill(pid, signal.SIGKILL)
        result(pid, pipe)
        workers[place] = forked(_worker(seed, processes + number, until))
    for pid, pipe in workers:
        told = result(pid, pipe)
        if told and "error" in told:
            found.problems.append(f"{seed}: a process failed: {told['error']}")
    checked = in_child(world.check)
    if "error" in checked:
        found.problems.append(f"{seed}: the check failed: {checked['error']}")
        return found
    found.problems += [f"{seed}: {problem}" for problem in checked.pop("problems")]
    for name, count in checked.items():
        setattr(found, name, count)
    return found


def _worker(seed: int, number: int, until: float) -> Callable[[], Any]:
    def work() -> Any:
        from tests.chaos import contention_world as world

        return world.work(random.Random(seed * 1000 + number), until)

    return work


def added(total: Found, one: Found) -> None:
    for name, value in asdict(one).items():
        setattr(total, name, getattr(total, name) + value)


def play(seeds: range, seconds: float, killed: int, say: Callable[[str], None] = print) -> Found:
    stores.start()
    database_is_made = in_child(_migrate)
    if "error" in database_is_made:
        raise RuntimeError(database_is_made["error"])
    total = Found()
    for seed in seeds:
        one = scene(seed, seconds, killed)
        added(total, one)
        for problem in one.problems:
            say(problem)
        if total.seeds % 50 == 0:
            say(total.line())
    return total


def _migrate() -> dict[str, Any]:
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {LOG_TABLE} (time double precision, tree jsonb)")
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many short scenes")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes", type=float, default=0.0, help="then one long scene")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    total = play(seeds, SCENE_SECONDS, KILLED_IN_A_SCENE)
    print(f"short scenes: {total.line()}")
    problems = list(total.problems)
    figures = {"short": asdict(total)}
    if arguments.minutes:
        long = scene(arguments.first, arguments.minutes * 60, int(arguments.minutes * 20))
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
