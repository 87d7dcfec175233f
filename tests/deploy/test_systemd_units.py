"""The units of a plain host: systemd takes them, they are confined, and their commands are the platform's."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from athanor.config.env import Environment, read
from athanor.config.program import HUNG_AFTER_SECONDS
from deploy.local.environment import REPOSITORY
from tests.deploy.programs import parse
from tests.pages import EXAMPLES

FOLDER = REPOSITORY / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
COMMON = FOLDER / "athanor-.service.d" / "10-common.conf"
PROGRAMS = ("web", "worker", "beat")
PAGE = "docs/operations/systemd.md:"
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSURE = 20  # tenths of what `systemd-analyze security` calls exposure level
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")


def settings(path: Path) -> dict[str, list[str]]:
    """Return the values of a unit's directives; a name may occur several times."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if match := re.fullmatch(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, "--no-pager", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, with an interpreter that is there."""
    shutil.copytree(FOLDER, tmp_path / "system")
    for path in (tmp_path / "system").glob("*.service"):
        path.write_text(path.read_text().replace("/opt/athanor/bin/python", sys.executable))
    return tmp_path / "system"


@needs_systemd
def test_systemd_takes_them(installed: Path) -> None:
    done = analyze("verify", *(str(installed / path.name) for path in UNITS))
    assert [line for line in done.stderr.splitlines() if "athanor" in line] == []
    assert done.returncode == 0


@needs_systemd
def test_a_mistake_is_found(installed: Path) -> None:
    path = installed / "athanor-web.service"
    path.write_text(path.read_text().replace("WatchdogSec=60", "WatchdogSecs=60"))
    assert "athanor-web.service" in analyze("verify", str(path)).stderr


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_they_are_confined(unit: Path, installed: Path) -> None:
    arguments = ("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", str(installed / unit.name))
    assert analyze(*arguments).returncode == 0
    (installed / COMMON.relative_to(FOLDER)).unlink()
    assert analyze(*arguments).returncode != 0, "it is the common part that confines them"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_they_run_the_programs_of_the_platform(unit: Path) -> None:
    (command,) = settings(unit)["ExecStart"]
    python, option, module, *arguments = command.split()
    assert (python, option, module) == ("/opt/athanor/bin/python", "-m", "athanor.config.program")
    name = unit.stem.removeprefix("athanor-")
    assert parse(*arguments).program == ("manage" if name == "prepare" else name)
    assert ("--no-local-cluster" in arguments) == (name == "prepare")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hung_program_is_restarted_and_a_waiting_one_is_not(name: str) -> None:
    found = settings(FOLDER / f"athanor-{name}.service")
    assert (found["Type"], found["Restart"]) == (["notify"], ["always"])
    assert float(found["WatchdogSec"][0]) == HUNG_AFTER_SECONDS
    patience = parse(*found["ExecStart"][0].split()[3:]).await_migrations
    assert float(found["TimeoutStartSec"][0]) > patience


def test_secrets_are_in_no_unit_and_those_of_prepare_in_no_other() -> None:
    for path in [*UNITS, COMMON]:
        for value in settings(path).get("Environment", []):
            names = {one.partition("=")[0] for one in value.split()}
            assert not any(re.search("KEY|SECRET|PASSWORD|TOKEN|URL", name) for name in names)
    files = {path.stem: settings(path).get("EnvironmentFile", []) for path in [*UNITS, COMMON]}
    assert files.pop("10-common") == ["/etc/athanor/environment"]
    assert files.pop("athanor-prepare") == ["/etc/athanor/environment.prepare"]
    assert not any(files.values())


def test_the_files_of_the_page_have_settings_that_the_platform_takes() -> None:
    common, of_prepare = [one.text for one in EXAMPLES if one.place.startswith(PAGE) and one.language == "ini"]
    known = {str(field.alias) for field in Environment.model_fields.values()} | {"ATHANOR_BOOTSTRAP_PASSWORD"}

    def variables(text: str) -> dict[str, str]:
        return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))

    found = variables(common)
    assert set(found) <= known
    assert set(variables(of_prepare)) == {"ATHANOR_MIGRATION_DATABASE_URL", "ATHANOR_BOOTSTRAP_PASSWORD"}
    taken = read(found)
    assert taken.public_url.startswith("https:")
    assert taken.trusted_proxies
