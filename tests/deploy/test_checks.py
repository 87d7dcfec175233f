"""The checks of a working copy read its own code."""

import sys
from pathlib import Path

import pytest

from deploy.local import checks
from deploy.local.install import REPOSITORY


def test_checks_read_the_code_of_this_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment may have the installation of another working copy, as git worktrees that share one do."""
    (tmp_path / "athanor").mkdir()
    (tmp_path / "athanor" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    platform = REPOSITORY / "platform" / "athanor" / "__init__.py"
    program = f"import athanor, sys; sys.exit(athanor.__file__ != {str(platform)!r})"
    assert checks.run_all([("code", [sys.executable, "-c", program], REPOSITORY)]) == 0
