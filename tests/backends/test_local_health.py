"""Findings of the local backend about its machine, and that the named remedy clears each."""

import os
import sys
from pathlib import Path

import pytest

from athanor.backends.facts import Level
from athanor.backends.local import health_check
from athanor.backends.local.config import LocalConfig


def findings(folder: Path, *command: str) -> dict[str, tuple[Level, str]]:
    config = LocalConfig(directory=str(folder), command=command or (sys.executable, "-m", "trainer.agent"))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    found = health_check.check_health(config, environment).findings
    return {finding.check: (finding.level, finding.remedy) for finding in found}


def test_a_folder_that_cannot_be_used_is_an_error_until_it_is_one(tmp_path: Path) -> None:
    place = tmp_path / "jobs"
    place.write_text("")
    level, remedy = findings(place)["directory"]
    assert (level, "ATHANOR_LOCAL_BACKEND_DIR" in remedy) == (Level.ERROR, True)
    place.unlink()
    assert findings(place)["directory"] == (Level.OK, "")


@pytest.mark.parametrize(
    ("command", "check", "remedy"),
    [
        (("no-such-python", "-m", "trainer.agent"), "agent", "correct `command`"),
        ((sys.executable, "-m", "no_such_trainer.agent"), "agent", "install no_such_trainer"),
        (("/bin/false", "-m", "trainer.agent"), "agent", "correct `command`"),
    ],
)
def test_a_command_that_starts_no_agent_is_an_error(
    command: tuple[str, ...], check: str, remedy: str, tmp_path: Path
) -> None:
    level, said = findings(tmp_path, *command)[check]
    assert (level, remedy in said) == (Level.ERROR, True)
    assert findings(tmp_path)[check][0] is Level.OK
    assert findings(tmp_path)["torch"][0] is Level.OK


@pytest.mark.parametrize(
    ("limit", "check"), [("DISK_ERROR", "disk"), ("DISK_WARNING", "disk"), ("MEMORY_WARNING", "memory")]
)
def test_too_little_space_is_a_finding(limit: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, limit, 2**62)
    level, remedy = findings(tmp_path)[check]
    assert level is (Level.ERROR if limit == "DISK_ERROR" else Level.WARNING)
    assert remedy
