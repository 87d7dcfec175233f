"""Wall-clock time of `make demo` in a clean clone, and of its second run. Aims: 5 min with a warm package cache; 90 s.

Not part of a plain `make bench`: it installs everything once more. Run with `make bench BENCH=--demo`.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.local.environment import REPOSITORY

AIMS_SECONDS = {"clean": 300, "second": 90}


def measure() -> dict[str, Any]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("ATHANOR_")}
    environment = {name: value for name, value in outside.items() if name not in ("VIRTUAL_ENV", "MAKEFLAGS")}
    with tempfile.TemporaryDirectory(prefix="athanor-demo-") as folder:
        clone = Path(folder) / "athanor"
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
        figures: dict[str, Any] = {"aims_seconds": AIMS_SECONDS}
        try:
            for name in AIMS_SECONDS:
                began = time.monotonic()
                result = subprocess.run(
                    ["make", "demo"], cwd=clone, env=environment, stdout=subprocess.PIPE, text=True, check=False
                )
                figures[f"{name}_seconds"] = time.monotonic() - began
                if result.returncode:
                    raise RuntimeError(f"make demo ({name}) failed:\n{result.stdout[-3000:]}")
        finally:
            subprocess.run(["make", "down"], cwd=clone, env=environment, check=False)
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    aims = figures["aims_seconds"]
    return [
        f"  make demo: clean clone {figures['clean_seconds']:.0f} s (aim <= {aims['clean']}), "
        f"second run {figures['second_seconds']:.0f} s (aim <= {aims['second']})"
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
