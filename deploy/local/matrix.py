"""`make test-matrix`: the tests on other versions of Python, Django and torch than the pinned ones.

Each combination has its own environment in `.matrix/`, created once. A combination without an installed Python is
reported as skipped. Standard library only.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.local.torch_choice import torch_index_options

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".matrix"
SECONDS_OF_A_TEST = 600  # compiling for a new Python makes some tests slower
CONTROL_PLANE = ("tests/control_plane", "tests/workers", "tests/cli")
TRAINER = ("tests/trainer",)
# What the control plane's tests need of the extra `dev`, most of which needs torch.
TEST_TOOLS = (
    "hypothesis", "jsonschema", "psutil", "pytest", "pytest-django", "pytest-socket", "pytest-timeout", "pytest-xdist",
    "schemathesis", "standardwebhooks",
)  # fmt: skip


@dataclass(frozen=True)
class Combination:
    """Versions to test together. `packages`: what pip installs; `is_pinned`: with constraints.txt."""

    name: str
    pythons: tuple[str, ...]
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    is_pinned: bool = False


ALL = ".[server,trainer,local,dev]"
NEW_PYTHONS = ("python3.14", "python3.13", "python3.12")
COMBINATIONS = (
    Combination("pinned", ("python3.11", "python3"), (ALL,), CONTROL_PLANE + TRAINER, is_pinned=True),
    Combination("oldest-torch", ("python3.11", "python3"), (ALL, "torch==2.11.*"), TRAINER),
    Combination("newest-django", NEW_PYTHONS, (".[server,local]", *TEST_TOOLS), CONTROL_PLANE),
    Combination("newest-torch", NEW_PYTHONS, (ALL,), TRAINER),
)


def python_of(combination: Combination) -> str | None:
    """Return the first Python of a combination that is installed and works."""
    for name in combination.pythons:
        found = shutil.which(name)
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    return None


def environment_of(combination: Combination, python: str) -> Path | None:
    """Return the interpreter of the combination's environment, made if it is missing. None if pip fails."""
    folder = FOLDER / combination.name
    interpreter, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.exists():
        return interpreter
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    constraints = ["-c", "constraints.txt"] if combination.is_pinned else []
    command = [
        str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *torch_index_options(),
        *constraints, "-e", *combination.packages,
    ]  # fmt: skip
    if subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        return None
    stamp.touch()
    return interpreter


def versions(interpreter: Path) -> str:
    """Return the versions that were tested, for people."""
    program = (
        "import sys, importlib.metadata as m;"
        "found = {d.name.lower(): d.version for d in m.distributions()};"
        "print('Python', sys.version.split()[0],"
        " *(f'{n} {found[n]}' for n in ('django', 'djangorestframework', 'celery', 'torch') if n in found))"
    )
    done = subprocess.run([str(interpreter), "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(combination: Combination, tests: tuple[str, ...]) -> tuple[str, str]:
    """Run the tests in a combination. Return the result (passed, FAILED or skipped) and what was tested."""
    python = python_of(combination)
    if python is None:
        return "skipped", f"none of {', '.join(combination.pythons)} is installed"
    interpreter = environment_of(combination, python)
    if interpreter is None:
        return "FAILED", "pip could not install it: its message is above"
    tested = versions(interpreter)
    print(f"== {combination.name}: {tested}", flush=True)
    path = f"{interpreter.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [
        str(interpreter), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile",
        f"--timeout={SECONDS_OF_A_TEST}", *tests,
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "PATH": path}, check=False)
    return "FAILED" if done.returncode else "passed", f"{tested}, {time.monotonic() - began:.0f} s"


def main() -> int:
    """Run the chosen combinations. Return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="make test-matrix")
    parser.add_argument("--only", choices=[each.name for each in COMBINATIONS])
    parser.add_argument("tests", nargs="*", help="instead of the tests of each combination")
    options = parser.parse_args()
    chosen = [each for each in COMBINATIONS if options.only in (None, each.name)]
    results = [(each, *run(each, tuple(options.tests) or each.tests)) for each in chosen]
    print()
    for combination, result, detail in results:
        print(f"{result:<8} {combination.name:<14} {detail}")
    return int(any(result == "FAILED" for _, result, _ in results))


if __name__ == "__main__":
    sys.exit(main())
