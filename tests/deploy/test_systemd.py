"""The unit that starts the stack with the machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.local.folder import DataFolder
from deploy.local.systemd import unit


def test_a_folder_with_odd_characters_is_quoted() -> None:
    text = unit(DataFolder(Path('/data/50% of "it"')))
    assert 'Environment="ATHANOR_DATA_DIR=/data/50%% of \\"it\\""\n' in text
    assert "EnvironmentFile=-/data/50%%" in text


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze")
    path = tmp_path / "athanor.service"
    path.write_text(unit(DataFolder(tmp_path / "data")))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [program, "--user", "verify", path]
    verified = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    complaints = [line for line in verified.stderr.splitlines() if "athanor.service" in line]
    assert complaints == []
