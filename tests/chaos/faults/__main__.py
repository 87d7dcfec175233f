"""`python -m tests.chaos.faults`: every kind of fault in every phase of a run, then random kills; part of `make chaos`.

Prints a line for each cell, and writes test-results/faults.json. Exit status 1 if a cell has failed.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from deploy.local.environment import REPOSITORY
from tests.chaos.faults.cells import Result, prepare, run_cell
from tests.chaos.faults.kills import KilledRun, run_kills
from tests.chaos.faults.table import KINDS, PHASES
from trainer.resilience.forking import start_fork_server

RESULTS = REPOSITORY / "test-results" / "faults.json"


def main() -> int:
    """Run what the command line asks for. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.faults")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated (default: all)")
    parser.add_argument("--phases", default=",".join(PHASES), help="comma-separated (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at a time (default: one a core)")
    parser.add_argument("--minutes", type=float, default=0.0, help="of random kills after the cells (default: none)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="of the random kills")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="athanor-faults-"))
    pairs = [(kind, phase) for kind in filter(None, options.kinds.split(",")) for phase in options.phases.split(",")]
    results, killed = [], []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, initializer=prepare, initargs=(folder,)) as pool:
        for result in pool.map(run_cell, pairs):
            results.append(result)
            print(line_of(result), flush=True)
    start_fork_server()
    for run in run_kills(folder, options.minutes, options.seed):
        killed.append(run)
        print(line_of_kills(run), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    written = {
        "cells": [asdict(each) for each in results],
        "seed": options.seed,
        "kills": [asdict(each) for each in killed],
    }
    RESULTS.write_text(json.dumps(written, indent=2) + "\n")
    counts = {
        verdict: sum(each.verdict == verdict for each in results) for verdict in sorted({r.verdict for r in results})
    }
    print(", ".join(f"{verdict} {count}" for verdict, count in counts.items()))
    failed = counts.get("failed", 0) + sum(bool(run.problems) for run in killed)
    if killed:
        done = sum(len(run.kills) for run in killed)
        print(
            f"{len(killed)} runs with {done} random kills, {failed} failed; `--seed {options.seed}` repeats the choices"
        )
    if not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


def line_of(result: Result) -> str:
    """Return what the table says of a cell."""
    text = f"{result.kind:<10} {result.phase:<10} {result.verdict:<10} {result.seconds:5.1f} s  {result.because[:150]}"
    return "\n".join([text, *(f"    {problem}" for problem in result.problems)])


def line_of_kills(run: KilledRun) -> str:
    """Return what was done to a run, and what came of it."""
    done = ", ".join(f"{each.target} of node{each.node} {each.signal} at {each.step}" for each in run.kills)
    text = f"kills: {done or 'none'}; attempts {', '.join(run.ends)}; {len(run.reasons)} reasons, {run.seconds:.1f} s"
    return "\n".join([text, *(f"    {problem}" for problem in run.problems)])


if __name__ == "__main__":
    sys.exit(main())
