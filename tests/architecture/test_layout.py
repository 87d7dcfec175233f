"""Rules of ARCHITECTURE.md that no type checker enforces."""

import ast
import os
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.selection import FOLDER, QUICK

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("platform", "workers", "trainer", "deploy")
MAX_PYTHON_FILE_LINES = 600
MAX_FUNCTION_LINES = 100
MAX_TYPESCRIPT_FILE_LINES = 400


def python_files(*folders: str) -> list[Path]:
    """What people wrote: neither migrations nor what `make gen` makes of the OpenAPI document, as long as that is."""
    found = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    made = ("migrations", "node_modules")
    return [path for path in found if not set(made) & set(path.parts) and not path.name.endswith("_gen.py")]


def test_platform_is_a_folder_and_no_package() -> None:
    for name in ("__init__.py", "conftest.py"):
        assert not (REPOSITORY / "platform" / name).exists(), "it would shadow the standard library's platform"
    assert not (REPOSITORY / "tests" / "platform").exists()
    assert not list((REPOSITORY / "platform").rglob("test_*.py")), "tests live in tests/"


def test_only_env_reads_the_servers_environment() -> None:
    allowed = {
        "platform/athanor/config/env.py",
        "platform/athanor/config/asgi.py",  # names the settings module, as Django asks
        "platform/athanor/config/celery.py",  # likewise
        "platform/athanor/config/program.py",  # likewise, and a variable of sd_notify(3)
        "platform/athanor/config/tooling.py",
        "platform/athanor/core/service_notify.py",  # variables of sd_notify(3)
        "platform/athanor/backends/local/backend.py",  # passes PATH and the locale on
        "platform/athanor/backends/slurm/transport.py",  # likewise, to Slurm's commands
        "platform/athanor/backends/kubernetes/credentials.py",  # variables of the pod; passed on to plugins
    }
    readers = set()
    for path in python_files("platform/athanor", "workers"):
        if "cli" in path.relative_to(REPOSITORY).parts:
            continue  # another program, with variables of its own
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("environ", "getenv")
                and getattr(node.value, "id", "") == "os"
            ):
                readers.add(str(path.relative_to(REPOSITORY)))
    assert readers <= allowed


def test_files_and_functions_stay_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files(*SOURCES, "tests")}
    longest = sorted(lengths, key=lambda path: lengths[path])[-5:]
    print("longest files:", *(f"{lengths[path]} {path.relative_to(REPOSITORY)}" for path in longest), sep="\n  ")
    assert lengths[longest[-1]] <= MAX_PYTHON_FILE_LINES
    assert statistics.median(lengths.values()) <= 120
    functions = {
        f"{path.relative_to(REPOSITORY)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in python_files(*SOURCES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    worst = max(functions, key=lambda name: functions[name])
    print("longest function:", worst, functions[worst])
    assert functions[worst] <= MAX_FUNCTION_LINES
    sources = [p for p in (REPOSITORY / "frontend" / "src").rglob("*.ts*") if not p.name.endswith(".gen.ts")]
    assert max((len(path.read_text().splitlines()) for path in sources), default=0) <= MAX_TYPESCRIPT_FILE_LINES


def test_every_package_says_what_it_is() -> None:
    silent = [
        str(path.parent.relative_to(REPOSITORY))
        for path in (REPOSITORY / "platform" / "athanor").glob("*/__init__.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_mypy_checks_every_file_strictly() -> None:
    """A file that is not named is silenced where an editable install makes it a part of site-packages."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert "exclude" not in settings
    named = [REPOSITORY / each for each in settings["files"]]
    unchecked = [
        path.relative_to(REPOSITORY)
        for path in [*python_files(*SOURCES), REPOSITORY / "manage.py"]
        if not any(path == each or each in path.parents for each in named)
    ]
    assert unchecked == []
    loosened = {
        "ignore_errors",
        "disallow_untyped_defs",
        "disable_error_code",
        "check_untyped_defs",
        "disallow_any_generics",
    }
    assert not [each["module"] for each in settings["overrides"] if loosened & set(each)]


def lint_imports(folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'platform'}:{folder}"}
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_contract_lists_every_part_of_the_trainer() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (listed,) = [c["forbidden_modules"] for c in contracts if c["name"].startswith("the control plane sees only")]
    parts = {path.stem for path in (REPOSITORY / "trainer").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {f"trainer.{part}" for part in parts - {"__init__", "__pycache__", "contract"}} == set(listed)


@pytest.mark.processes
def test_import_contracts_hold() -> None:
    result = lint_imports(REPOSITORY)
    assert result.returncode == 0, result.stdout[-4000:]
    assert "0 broken" in result.stdout


@pytest.mark.processes
def test_a_deliberate_violation_is_caught(tmp_path: Path) -> None:
    """Prove that the contracts cover the code."""
    for name in ("pyproject.toml", "platform", "workers", "trainer"):
        source = REPOSITORY / name
        if source.is_file():
            (tmp_path / name).write_text(source.read_text())
            continue
        for path in source.rglob("*.py"):
            copy = tmp_path / path.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
    planted = tmp_path / "platform" / "athanor" / "jobs" / "planted.py"
    planted.write_text("import athanor.dispatch.observe\nimport rest_framework\n")
    (tmp_path / "trainer" / "planted.py").write_text("import athanor.jobs.states\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0
    for name in ("one-way layers", "the HTTP framework only in api", "the trainer knows nothing"):
        assert any(name in line and "BROKEN" in line for line in result.stdout.splitlines()), result.stdout[-3000:]


def test_files_of_quick_tests_exist() -> None:
    assert [name for name in QUICK if not (FOLDER / name).exists()] == []
