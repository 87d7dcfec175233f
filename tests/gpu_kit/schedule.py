"""The order of the kit's parts: each in a process of its own with a time limit, its result kept in a file.

A part that fails, crashes or hangs does not stop the others. A second call takes up what the first did not finish;
`--again` repeats what failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu_kit.report import write_report
from trainer.resilience.control_groups import available_cores

REPORT_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    """`needs`: parts that must have passed. `alone`: whether nothing else may run beside it, since it measures."""

    name: str
    limit: float = 90.0
    needs: tuple[str, ...] = ()
    alone: bool = False


def parts() -> list[Part]:
    """Return all parts, in the order in which they are begun."""
    from tests.gpu_kit.jobs import CASES, REFERENCES
    from tests.gpu_kit.speed import SPEEDS

    found = [
        Part("environment", alone=True),
        Part("collectives"),
        Part("attention"),
        Part("ring"),
        Part("activations"),
        Part("generation"),
        Part("compute time", alone=True),
        *(Part(name, alone=True) for name in ("preflight", "GPU samples", "checksum", "repeated step")),
    ]
    for name, reference in REFERENCES.items():
        needs = () if reference.base is None else (f"reference {reference.base}",)
        found.append(Part(f"reference {name}", needs=needs))
    for name, case in CASES.items():
        found.append(Part(f"case {name}", limit=240.0, needs=(f"reference {case.reference}",)))
    found += [Part("resume", limit=240.0), Part("hang", limit=180.0)]
    found += [Part(name, alone=True) for name in ("matmul", "attention speed", "gradient sums", "host copies")]
    found += [Part(name, limit=180.0, alone=True) for name in ("recovery", "saves")]
    for name, speed in SPEEDS.items():
        found.append(Part(f"speed {name}", limit=180.0, alone=True))
        if speed.has_bare_loop:
            found.append(Part(f"bare {name}", limit=180.0, needs=(f"speed {name}",), alone=True))
    return found


class Schedule:
    """Runs parts until the deadline. `results`: folder of their results and outputs."""

    def __init__(self, chosen: list[Part], results: Path, device: str, deadline: float, parallel: int) -> None:
        self._chosen, self._results, self._device, self._deadline = chosen, results, device, deadline
        self._parallel = parallel
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        """Begin each part when it may, and return when all have ended or the time is up."""
        waiting = [part for part in self._chosen if read_result(self._results, part.name) is None]
        running: dict[Future[None], Part] = {}
        with ThreadPoolExecutor(self._parallel) as pool:
            while waiting or running:
                for part in self._startable(waiting, list(running.values())):
                    waiting.remove(part)
                    running[pool.submit(self._run, part)] = part
                if not running:
                    break  # what is left waits for what did not pass, or for more time
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    del running[future]
                    future.result()

    def _startable(self, waiting: list[Part], running: list[Part]) -> list[Part]:
        """Return the parts to begin now. A part that runs alone lets none behind it go first."""
        found: list[Part] = []
        for part in list(waiting):
            if time.monotonic() > self._deadline or len(running) + len(found) >= self._parallel:
                break
            if any(each.alone for each in [*running, *found]):
                break
            needed = [read_result(self._results, name) for name in part.needs]
            if any(result is not None and result["state"] != "passed" for result in needed):
                write_result(self._results, part.name, {"state": "skipped", "because": f"{part.needs[0]} did not pass"})
                waiting.remove(part)
            elif any(result is None for result in needed):
                continue
            elif part.alone and (running or found):
                break
            else:
                found.append(part)
        return found

    def _run(self, part: Part) -> None:
        """Run one part. At the deadline it is killed and keeps no result, so that the next call begins it again."""
        begin = time.monotonic()
        limit = min(part.limit, self._deadline - begin)
        log = self._results / f"{part.name}.log"
        command = [sys.executable, "-m", "tests.gpu_kit.part", part.name, str(self._results), self._device]
        with log.open("wb") as out:
            # Not where the kit was called: Python would import another checkout there first.
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, cwd=self._results)
            try:
                status: int | None = process.wait(max(limit, 1.0))
            except subprocess.TimeoutExpired:
                status = None
                kill_session(process.pid)
                process.wait()
        seconds = time.monotonic() - begin
        if status is None and limit < part.limit:
            print(f"{part.name}: not finished in the given time; the next call begins it again", flush=True)
            return
        result = read_result(self._results, part.name)
        if result is None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            because = f"ended with status {status}" if status is not None else f"still ran after {limit:.0f} s"
            result = {"state": "failed", "because": f"{because}: {tail}"}
        write_result(self._results, part.name, {**result, "seconds": round(seconds, 1)})
        because = f": {result['because'].splitlines()[-1]}" if result.get("because") else ""
        print(f"{part.name}: {result['state']} in {seconds:.0f} s{because[:300]}", flush=True)


def kill_session(leader: int) -> None:
    """Kill a part and all processes it started, those in sessions of their own included."""
    for pid in [*descendants(leader), leader]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def descendants(pid: int) -> list[int]:
    """Return the process ids of all children of a process and of their children."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(each) for each in children.read_text().split()] if children.exists() else []
    return [*found, *(each for child in found for each in descendants(child))]


def result_path(results: Path, name: str) -> Path:
    """Return the file of a part's result."""
    return results / f"{name}.json"


def read_result(results: Path, name: str) -> dict[str, Any] | None:
    """Return the result of a part; None if it has not ended."""
    path = result_path(results, name)
    return json.loads(path.read_text()) if path.exists() else None


def write_result(results: Path, name: str, result: dict[str, Any]) -> None:
    """Write the result of a part, whole or not at all."""
    made = results / f"{name}.{os.getpid()}.part"
    made.write_text(json.dumps(result, indent=1))
    made.replace(result_path(results, name))


def main(default_results: Path) -> int:
    """Run the parts as the command line says. Return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Check and measure the trainer on this machine's GPU.")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for this call (default: 9)")
    parser.add_argument("--results", type=Path, default=default_results, help="folder of results")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU; cpu rehearses with small sizes")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="TEXT",
        help="parts with one of these in their name, and what they need",
    )
    most = min(8, available_cores())
    parser.add_argument("--parallel", type=int, default=most, help=f"small runs at the same time (default: {most})")
    parser.add_argument("--again", action="store_true", help="repeat the parts that failed or were skipped")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.minutes * 60 - REPORT_SECONDS
    import torch

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; `nvidia-smi` shows whether the driver does")
    results = arguments.results.absolute()
    results.mkdir(parents=True, exist_ok=True)
    everything = parts()
    chosen = [part for part in everything if any(text in part.name for text in arguments.only)]
    needed = {name for part in chosen for name in part.needs}
    while needed - {part.name for part in chosen}:
        chosen = [part for part in everything if part in chosen or part.name in needed]
        needed = {name for part in chosen for name in part.needs}
    for part in chosen:
        result = read_result(results, part.name)
        if arguments.again and result is not None and result["state"] != "passed":
            result_path(results, part.name).unlink()
    Schedule(chosen, results, device, deadline, arguments.parallel).run()
    found = {part.name: read_result(results, part.name) for part in chosen}
    print(write_report(results, device, found))
    return 1 if any(result is not None and result["state"] == "failed" for result in found.values()) else 0
