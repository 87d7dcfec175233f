"""`python -m tests.architecture.words`: write how often marker words of the code base's old dialect occur, by package.

test_language.py compares: the counts may only fall.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COUNTS = Path(__file__).with_name("words.json")
MARKERS = re.compile(
    r"\b(anew|whoever|told|tells?|mend(?:s|ed)?|at once|so far|goes? on|carr(?:y|ies) on)\b", re.IGNORECASE
)
WRITTEN = (".py", ".ts", ".tsx", ".md")
OF_THEIR_OWN = ("CHANGELOG.md", "tests/architecture/words.py")


def files() -> list[str]:
    """Return the tracked files that people write: no migrations, no generated code, no history."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return [
        name
        for name in listed.splitlines()
        if name.endswith(WRITTEN)
        and not re.search(r"/migrations/|[._]gen\.", name)
        and name not in OF_THEIR_OWN
        and (REPOSITORY / name).exists()
    ]


def package_of(name: str) -> str:
    """Return the package of a file: `platform/athanor/jobs`, `trainer/agent`, `tests/e2e`, `docs`, ..."""
    parts = Path(name).parts[:-1]
    depth = 3 if parts[:1] == ("platform",) else 1 if parts[:1] == ("docs",) else 2
    return "/".join(parts[:depth]) or name


def occurrences() -> dict[str, list[str]]:
    """Return every occurrence of a marker word as `file:line: word`, by package."""
    found: dict[str, list[str]] = {}
    for name in files():
        for number, line in enumerate((REPOSITORY / name).read_text().splitlines(), start=1):
            for match in MARKERS.finditer(line):
                found.setdefault(package_of(name), []).append(f"{name}:{number}: {match[0]}")
    return found


def main() -> int:
    counts = {package: len(places) for package, places in sorted(occurrences().items())}
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
    words = Counter(package_of(name) for name in files() for _ in re.finditer(r"\w+", (REPOSITORY / name).read_text()))
    for package, count in sorted(counts.items(), key=lambda each: -each[1]):
        print(f"{count:5} {1e5 * count / words[package]:6.0f} per 100,000 words  {package}")
    total = sum(counts.values())
    print(f"{total:5} {1e5 * total / sum(words.values()):6.0f} per 100,000 words  in total")
    return 0


if __name__ == "__main__":
    sys.exit(main())
