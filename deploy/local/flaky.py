"""Run failed end-to-end tests once more, in a clean stack, and report those that pass then as flaky."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

MAX_FLAKY = 2  # in one run of the suite
WHOLE_STACK = "tests/e2e/"


@dataclass(frozen=True)
class Failure:
    """A failed test and the first line of its message."""

    test: str
    message: str


def failures_in(report: Path) -> list[Failure]:
    """Return the failed tests of a JUnit report of pytest, without one if there is no report."""
    if not report.exists():
        return []
    found = []
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest's own report
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            path = str(case.get("classname")).replace(".", "/")
            message = (problem.get("message") or "").partition("\n")[0]
            found.append(Failure(f"{path}.py::{case.get('name')}", message))
    return found


def rerun(report: Path, repository: Path, environment: dict[str, str]) -> bool:
    """Run the failed tests of a report again. Return whether the failures were flaky, and few enough to accept.

    Only end-to-end tests get a second run. The result is written to `flaky.json` beside the report: a list of tests,
    with the message of their first failure, that passed the second time.
    """
    failed = failures_in(report)
    summary = report.with_name("flaky.json")
    if not failed or len(failed) > MAX_FLAKY or not all(each.test.startswith(WHOLE_STACK) for each in failed):
        summary.write_text("[]\n")
        return False
    print(f"== once more, in a clean stack: {', '.join(each.test for each in failed)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(each.test for each in failed)]
    passed = subprocess.run(command, cwd=repository, env=environment, check=False).returncode == 0
    summary.write_text(json.dumps([asdict(each) for each in failed] if passed else [], indent=1) + "\n")
    if passed:
        for each in failed:
            print(f"FLAKY   {each.test}: {each.message}", flush=True)
        print("A flaky test is a defect: find its cause today.", flush=True)
    return passed
