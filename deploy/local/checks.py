"""`make lint`, `test`, `test-all`, `test-fast`, `gen`: all commands are run, and failures are named at the end.

`make test` leaves out the tests marked `slow`: long ones of paths that shorter tests cover too.
`make test CHANGED=1` runs the tests that uncommitted changes can affect (of a clean tree: the last commit);
`CHANGED=REVISION` those that changes since a revision can affect.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.local import flaky
from deploy.local.environment import with_repository_on_path
from deploy.local.install import FRONTEND, REPOSITORY, node_environment

BINARIES = Path(sys.executable).parent
RESULTS = REPOSITORY / "test-results"
REPORT = RESULTS / "pytest.xml"
# Two files of tests at a time. Each half has stores, a stack and clusters of its own.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile")
ARCHITECTURE_TESTS = "tests/architecture"
OPENAPI_DOCUMENT = REPOSITORY / "platform" / "athanor" / "api" / "openapi.json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
Command = tuple[str, list[str], Path]
"""Its name, its arguments, and the folder it runs in."""
Outcome = tuple[str, bool, float]
"""The command's name, whether it passed, and its seconds."""
# mypy's Django plugin and the OpenAPI generator load the settings; neither connects to anything.
CHECK_ONLY = {
    "ATHANOR_SECRET_KEY": "for static checks only",
    "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none",
}


def lint_commands() -> list[Command]:
    """Return the static checks, the longest first. The architecture tests read the code and start nothing."""
    return [
        ("mypy", [str(BINARIES / "mypy")], REPOSITORY),
        ("ruff check", [str(BINARIES / "ruff"), "check", "--quiet"], REPOSITORY),
        ("ruff format", [str(BINARIES / "ruff"), "format", "--check", "--quiet"], REPOSITORY),
        ("import contracts", [str(BINARIES / "lint-imports"), "--no-cache"], REPOSITORY),
        ("architecture", [sys.executable, "-m", "pytest", "-q", ARCHITECTURE_TESTS], REPOSITORY),
        ("dashboard types", ["npm", "run", "--silent", "typecheck"], FRONTEND),
        ("dashboard lint", ["npm", "run", "--silent", "lint"], FRONTEND),
    ]


DASHBOARD_TESTS: Command = ("dashboard tests", ["npm", "run", "--silent", "test"], FRONTEND)


def pytest_command(*chosen: str) -> Command:
    """Return the command of pytest. `chosen`: its arguments, all tests if empty."""
    arguments = ["-q", *SIDE_BY_SIDE, f"--junitxml={REPORT}", *chosen]
    return ("pytest", [sys.executable, "-m", "pytest", *arguments], REPOSITORY)


def affected_tests(revision: str) -> list[str]:
    """Return the test files that changes since a revision can affect. "1": uncommitted changes, or the last commit."""
    if revision == "1":
        unchanged = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=REPOSITORY, check=False).returncode == 0
        revision = "HEAD~1" if unchanged else "HEAD"
    command = [sys.executable, "-m", "tests.affected", revision]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.split()


PYTHON_TYPES_HEADER = (
    '"""What the command line reads of the API, made from platform/athanor/api/openapi.json by `make gen`."""'
)


def gen_commands() -> list[Command]:
    """Return the commands that write generated files."""
    made = ["--format", "openapi-json", "--file", str(OPENAPI_DOCUMENT), "--fail-on-warn"]
    spectacular = ["manage.py", "spectacular", *made]
    return [
        ("OpenAPI document", [sys.executable, *spectacular], REPOSITORY),
        ("TypeScript types", ["npm", "run", "--silent", "gen"], FRONTEND),
        ("Python types", python_types(REPOSITORY / "platform" / "athanor" / "cli" / "schema_gen.py"), REPOSITORY),
        ("reference pages", [sys.executable, "-m", "deploy.reference"], REPOSITORY),
        ("alerts and dashboards", [sys.executable, "-m", "deploy.monitoring"], REPOSITORY),
    ]


def python_types(output: Path) -> list[str]:
    """Return the command that writes the types of the API that the command line reads, as TypedDicts."""
    return [
        sys.executable, "-m", "datamodel_code_generator", "--input", str(OPENAPI_DOCUMENT),
        "--input-file-type", "openapi", "--output", str(output), "--output-model-type", "typing.TypedDict",
        "--target-python-version", "3.11", "--no-use-closed-typed-dict", "--formatters", "builtin",
        "--custom-file-header", PYTHON_TYPES_HEADER, "--openapi-scopes", "paths", "--openapi-include-paths",
        "/api/v1/jobs", "/api/v1/jobs/{job_id}", "/api/v1/jobs:plan", "/api/v1/presets",
        "/api/v1/jobs/{job_id}/artifacts", "/api/v1/jobs/{job_id}/checkpoints", "/api/v1/jobs/{job_id}/profiles",
    ]  # fmt: skip


def run_all(commands: list[Command], side_by_side: list[Command] | None = None) -> int:
    """Run every command even after a failure, so that one run shows all problems.

    `side_by_side`: commands that run first, two at a time; what one prints follows when it has ended.
    """
    RESULTS.mkdir(exist_ok=True)
    environment = node_environment()
    static = with_repository_on_path({**environment, **_settings_for_checks()})
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(2) as pool:
        outcomes += pool.map(lambda command: _run_quietly(command, static), side_by_side or [])
    for name, command, folder in commands:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        # The tests start stacks of their own, which would take a database given by the environment for theirs.
        chosen = environment if name == "pytest" else static
        passed = subprocess.run(command, cwd=folder, env=chosen, check=False).returncode == 0
        if name == "pytest" and not passed:
            passed = flaky.rerun(REPORT, REPOSITORY, chosen)
        outcomes.append((name, passed, time.monotonic() - began))
    print()
    for name, passed, seconds in outcomes:
        print(f"{'passed' if passed else 'FAILED'}  {name:<18} {seconds:6.1f} s")
    return 0 if all(passed for _, passed, _ in outcomes) else 1


def _run_quietly(command: Command, environment: dict[str, str]) -> Outcome:
    """Run a command and print its output when it has ended."""
    name, arguments, folder = command
    began = time.monotonic()
    done = subprocess.run(
        arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(f"== {name}\n{done.stdout}", end="", flush=True)
    return name, done.returncode == 0, time.monotonic() - began


def _settings_for_checks() -> dict[str, str]:
    """Return keys of the settings, for tools that only load them. The tests use their own database and keys."""
    command = [sys.executable, "manage.py", "generate_master_key"]
    given = {**CHECK_ONLY, **os.environ}
    key = subprocess.run(command, cwd=REPOSITORY, env=given, capture_output=True, text=True, check=False).stdout.strip()
    return {**CHECK_ONLY, "ATHANOR_MASTER_KEY": key} if key else {}


def _say_browser() -> None:
    if any(shutil.which(name) for name in BROWSERS):
        return
    print("no Chromium is installed: the browser tests were SKIPPED (Debian: apt-get install chromium)")


def main() -> int:
    """Run the checks named by the argument. Return the exit code."""
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "lint":
        return run_all([], lint_commands())
    if what == "gen":
        return run_all(gen_commands())
    if what == "test-fast":
        return run_all([pytest_command("--no-processes")])
    if what in ("test", "test-all"):
        revision = os.environ.pop("CHANGED", "")
        if revision:
            chosen = affected_tests(revision)
        else:
            chosen = [f"--ignore={ARCHITECTURE_TESTS}", *(("-m", "not slow") if what == "test" else ())]
        code = run_all([pytest_command(*chosen)], [*lint_commands(), DASHBOARD_TESTS])
        _say_browser()
        return code
    print("athanor: say lint, test, test-all, test-fast or gen", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
