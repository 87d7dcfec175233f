"""Processes at once over admission, quotas and budgets: nothing is found, and a planted fault is.

In a process of its own: it forks, and what forks must have neither threads nor connections.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.local.environment import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SEEDS = 4  # in a round; `make chaos` plays a thousand


def played(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the figures of the short scenes."""
    figures = tmp_path / "figures.json"
    paths = os.pathsep.join([str(REPOSITORY / "platform"), str(REPOSITORY)])
    command = [sys.executable, "-m", "tests.chaos.contention", *arguments, "--json", str(figures)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert figures.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(figures.read_text())["short"]
    return done.returncode, found


def test_no_admission_goes_above_what_there_is_at_any_instant(tmp_path: Path) -> None:
    admitted = finished = 0
    for first in range(1, 61, SEEDS):  # on a busy machine a scene may be over before any job ends
        status, found = played(tmp_path, "--seeds", str(SEEDS), "--first", str(first))
        assert (status, found["problems"]) == (0, [])
        admitted += found["admitted"]
        finished += found["finished"]
        if admitted and finished:
            break
    assert admitted > 0
    assert finished > 0


def test_admission_that_forgets_what_it_has_just_admitted_is_found(tmp_path: Path) -> None:
    for first in range(1, 37, SEEDS):  # on a busy machine a scene may be over before two processes admit
        status, found = played(tmp_path, "--seeds", str(SEEDS), "--first", str(first), "--plant")
        if status == 1:
            break
    assert status == 1
    assert found["problems"]
