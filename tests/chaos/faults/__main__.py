"""`python -m tests.chaos.faults`: every kind of fault in every phase of a run, then random kills; part of `make chaos`.

Prints a line for each cell, and writes test-results/faults.json. Exit status 1 if a cell has failed.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from deploy.local.environment import REPOSITORY
from tests.chaos.faults.cells import Cells, Result
from tests.chaos.faults.table import KINDS, PHASES
from trainer.resilience.forking import start_fork_server

RESULTS = REPOSITORY / "test-results" / "faults.json"


def main() -> int:
    """Run what the command line asks for. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.faults")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated (default: all)")
    parser.add_argument("--phases", default=",".join(PHASES), help="comma-separated (default: all)")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    start_fork_server()
    folder = Path(tempfile.mkdtemp(prefix="athanor-faults-"))
    cells, results = Cells(folder), []
    for kind in options.kinds.split(","):
        for phase in options.phases.split(","):
            results.append(cells.run(kind, phase))
            print(line_of(results[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    counts = {verdict: sum(each.verdict == verdict for each in results) for verdict in sorted({r.verdict for r in results})}
    print(", ".join(f"{verdict} {count}" for verdict, count in counts.items()))
    failed = counts.get("failed", 0)
    if not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


def line_of(result: Result) -> str:
    """Return what the table says of a cell."""
    text = f"{result.kind:<10} {result.phase:<10} {result.verdict:<10} {result.seconds:5.1f} s  {result.because[:150]}"
    return "\n".join([text, *(f"    {problem}" for problem in result.problems)])


if __name__ == "__main__":
    sys.exit(main())
