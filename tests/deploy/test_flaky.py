"""A failed end-to-end test gets a second run; a pass then is reported and accepted, but not for more than two tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.flaky import failures_in, rerun

# Fails at its first run, and passes at each later one.
FLAKY = """
from pathlib import Path

def test_sometimes():
    marker = Path(__file__).with_name("ran")
    ran = marker.exists()
    marker.touch()
    assert ran, "the first run fails"
"""
PLAIN = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
BROKEN = "def test_never(): assert False, 'always'\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "e2e").mkdir(parents=True)
    (tmp_path / "tests" / "unit").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n")
    return tmp_path


def suite(repository: Path) -> Path:
    """Run the tests of the repository once. Return their report."""
    report = repository / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "tests"]
    done = subprocess.run(command, cwd=repository, env=PLAIN, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout
    return report


def test_a_test_that_passes_the_second_time_is_reported_as_flaky(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (repository / "tests/e2e/test_flaky.py").write_text(FLAKY)
    report = suite(repository)
    assert rerun(report, repository, PLAIN)
    found = json.loads((repository / "flaky.json").read_text())
    assert [each["test"] for each in found] == ["tests/e2e/test_flaky.py::test_sometimes"]
    assert "the first run fails" in found[0]["message"]
    assert "FLAKY   tests/e2e/test_flaky.py::test_sometimes" in capfd.readouterr().out


def test_a_test_that_fails_again_stays_failed(repository: Path) -> None:
    (repository / "tests/e2e/test_broken.py").write_text(BROKEN)
    assert not rerun(suite(repository), repository, PLAIN)
    assert json.loads((repository / "flaky.json").read_text()) == []


def test_other_tests_get_no_second_run(repository: Path) -> None:
    (repository / "tests/unit/test_flaky.py").write_text(FLAKY)
    assert not rerun(suite(repository), repository, PLAIN)


def test_three_failures_are_too_many(repository: Path) -> None:
    for number in range(3):
        folder = repository / "tests/e2e" / f"part{number}"
        folder.mkdir()
        (folder / f"test_flaky_{number}.py").write_text(FLAKY)
    report = suite(repository)
    assert len(failures_in(report)) == 3
    assert not rerun(report, repository, PLAIN)


def test_a_run_without_a_report_is_not_excused(tmp_path: Path) -> None:
    assert failures_in(tmp_path / "none.xml") == []
    assert not rerun(tmp_path / "none.xml", tmp_path, PLAIN)
