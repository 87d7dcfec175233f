"""`python -m tests.affected REVISION`: print the test files that changes since a revision can affect.

A test file is affected by its own imports, by theirs, and by the modules that tests and trainer start as programs
(`-m trainer`). What the platform starts is left out: nearly all of its tests use a backend that starts nothing.
Files of the whole stack (e2e, docs, chaos, bench) start everything, so they are selected only when they themselves or
helpers in tests/ have changed: run `make test` before a merge.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = {
    "athanor": "platform/athanor",
    "workers": "workers",
    "trainer": "trainer",
    "deploy": "deploy",
    "tests": "tests",
}
WHOLE_STACK = ("tests/e2e/", "tests/docs/test_commands.py", "tests/chaos/", "tests/bench/")
ALWAYS = ("tests/architecture",)
STARTED = re.compile(r'"-m",\s*"([a-z_.]+)"')


def changed_files(revision: str) -> set[str]:
    """Return the files that differ from `revision`, and those that git does not know yet."""
    changed = _git("diff", "--name-only", revision)
    return {*changed, *_git("ls-files", "--others", "--exclude-standard")}


def modules() -> dict[str, str]:
    """Return the path of every module of the repository by its dotted name."""
    found = {}
    for package, folder in ROOTS.items():
        for path in (REPOSITORY / folder).rglob("*.py"):
            inside = path.relative_to(REPOSITORY / folder).with_suffix("").parts
            dotted = ".".join((package, *inside)).removesuffix(".__init__")
            found[dotted] = str(path.relative_to(REPOSITORY))
    return found


def imports_of(path: str, known: dict[str, str]) -> Iterator[str]:
    """Yield the modules of the repository that a file imports or starts as a program."""
    text = (REPOSITORY / path).read_text()
    named = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for match in STARTED.finditer(text) if path.startswith(("tests/", "trainer/")) else ():
        named += [match[1], f"{match[1]}.__main__"]
    yield from (name for name in named if name in known)


@cache
def importers_of_files() -> dict[str, set[str]]:
    """Return the files that import or start each file of the repository, by its path."""
    known = modules()
    importers: dict[str, set[str]] = {}
    for path in known.values():
        for name in imports_of(path, known):
            importers.setdefault(known[name], set()).add(path)
        conftests = (str(parent / "conftest.py") for parent in Path(path).parents)
        for conftest in conftests if Path(path).name.startswith("test_") else ():
            importers.setdefault(conftest, set()).add(path)
    return importers


def affected(changed: Iterable[str]) -> list[str]:
    """Return the test files that these changed files can affect, and the folders that are always checked."""
    importers = importers_of_files()
    reached = _closure(changed, importers)
    among_tests = {
        source: {path for path in paths if path.startswith("tests/")}
        for source, paths in importers.items()
        if source.startswith("tests/")
    }
    reached_by_tests = _closure((path for path in changed if path.startswith("tests/")), among_tests)
    found = {
        path
        for path in reached
        if Path(path).name.startswith("test_")
        and path.startswith("tests/")
        and (path in reached_by_tests or not path.startswith(WHOLE_STACK))
        and (REPOSITORY / path).exists()
    }
    return sorted({path for path in found if not path.startswith(ALWAYS)} | set(ALWAYS))


def _closure(start: Iterable[str], importers: dict[str, set[str]]) -> set[str]:
    reached, open_ = set(), list(start)
    while open_:
        path = open_.pop()
        if path not in reached:
            reached.add(path)
            open_ += importers.get(path, ())
    return reached


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.split()


def main() -> int:
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    print("\n".join(affected(changed_files(revision))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
