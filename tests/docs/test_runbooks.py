"""Every ending reason and every finding of a health check has a runbook, and the runbooks agree with the code."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from athanor.backends import runbooks
from athanor.clusters.node_score import WEIGHTS
from athanor.core.runbooks import PREFIX, anchor
from athanor.jobs.reasons import MEANINGS, SHARED_RUNBOOKS, Reason, Retry, explain, runbook_of
from deploy.monitoring.alerts import ALERTS, rules_document
from tests.pages import EXAMPLES, REPOSITORY

FOLDER = REPOSITORY / "docs" / "runbooks"
SECTIONS = ["Symptom", "Check", "Cause", "Remedy", "What the platform does"]
PLATFORM = REPOSITORY / "platform" / "athanor"
SOURCES = [*PLATFORM.glob("backends/*/health_check.py"), *PLATFORM.glob("fleet/*.py")]
PAGES = sorted([*FOLDER.glob("reasons/*.md"), *FOLDER.glob("findings/*.md")])
ALERT_PAGES = sorted(FOLDER.glob("alerts/*.md"))
COVERED = {reason: runbook_of(reason) for reason in Reason if runbook_of(reason)}


def pages() -> set[str]:
    """Return the pages of docs/, all of which are in the site."""
    docs = REPOSITORY / "docs"
    return {file.relative_to(docs).as_posix() for file in docs.rglob("*.md")}


def file_of(path: str) -> Path:
    return FOLDER / f"{path.removeprefix(PREFIX + '/').partition('#')[0]}.md"


def section(text: str, name: str) -> str:
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def linked_pages(file: Path) -> set[str]:
    """Return the pages of docs/ that a page links to, relative to it."""
    linked = {target.partition("#")[0] for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", file.read_text())}
    return {(file.parent / target).resolve().relative_to(REPOSITORY / "docs").as_posix() for target in linked}


def checks_in(source: str) -> Iterator[str]:
    """Yield the check of each Finding that is not OK. A name is that of a loop over tuples of constants."""
    tree = ast.parse(source)
    loops = {
        target.id: [row.elts[at].value for row in loop.iter.elts]  # type: ignore[attr-defined] # a tuple of tuples
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple) and isinstance(loop.target, ast.Tuple)
        for at, target in enumerate(loop.target.elts)
        if isinstance(target, ast.Name) and all(isinstance(row.elts[at], ast.Constant) for row in loop.iter.elts)  # type: ignore[attr-defined] # as above
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
            check, level = call.args[:2]
            if ast.unparse(level) == "Level.OK":
                continue
            yield from [check.value] if isinstance(check, ast.Constant) else loops[check.id]  # type: ignore[attr-defined] # a name


def test_every_reason_but_completed_has_a_runbook_and_no_runbook_is_left_over() -> None:
    assert set(Reason) - set(COVERED) == {Reason.COMPLETED}
    assert {file_of(path) for path in COVERED.values()} == set(FOLDER.glob("reasons/*.md"))
    shared = [reason for page in SHARED_RUNBOOKS.values() for reason in page]
    assert len(shared) == len(set(shared)), "each is on one page"


def test_every_finding_has_a_runbook_and_no_runbook_is_left_over() -> None:
    found = {check for source in SOURCES for check in checks_in(source.read_text())}
    assert {"answer", "platform_address", "pod security", "torch", "MinJobAge"} <= found
    assert found == {check for page in runbooks.PAGES.values() for check in page}
    assert {FOLDER / "findings" / f"{page}.md" for page in runbooks.PAGES} == set(FOLDER.glob("findings/*.md"))


def test_a_check_of_ones_own_backend_has_none() -> None:
    assert runbooks.runbook_of_check("water level") == ""


@pytest.mark.parametrize(
    "path", sorted({*COVERED.values(), *map(runbooks.runbook_of_check, sum(runbooks.PAGES.values(), ()))})
)
def test_the_anchor_of_an_address_is_a_heading_of_its_page(path: str) -> None:
    name = path.partition("#")[2]
    headings = re.findall(r"^#+ (.*)$", file_of(path).read_text(), re.M)
    waits = "/waiting#" in path  # its table has those without a heading of their own
    assert not name or waits or name in {anchor(heading) for heading in headings}
    assert not waits or f"`{name}`" in file_of(path).read_text() or name in {anchor(heading) for heading in headings}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)
def test_a_runbook_has_its_sections_and_is_short(file: Path) -> None:
    text = file.read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert all(section(f"{text}\n", name).strip() for name in SECTIONS)
    assert 40 <= len(text.splitlines()) <= 110
    assert "```sh" in section(text, "Check")


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)
def test_a_runbook_names_tests_that_exist_and_links_to_pages(file: Path) -> None:
    text = file.read_text()
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text)
    assert named, "a test that shows the remedy"
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
    assert linked_pages(file) <= pages()


def test_the_index_lists_every_runbook() -> None:
    index = (FOLDER / "README.md").read_text()
    for reason, path in COVERED.items():
        page, _, name = path.removeprefix(f"{PREFIX}/").partition("#")
        if MEANINGS[reason].final is not None:
            assert f"| `{reason.value}` | [{page.partition('/')[2]}]({page}.md{'#' * bool(name)}{name}) |" in index
    for page, checks in runbooks.PAGES.items():
        for check in checks:
            assert f"| `{check}` | [{page}](findings/{page}.md#{anchor(check)}) |" in index
    assert "(reasons/waiting.md)" in index


@pytest.mark.parametrize("reason", [reason for reason in COVERED if MEANINGS[reason].final is not None])
def test_what_a_runbook_says_of_retries_and_incidents_is_what_the_code_does(reason: Reason) -> None:
    meaning, text = MEANINGS[reason], " ".join(section(file_of(COVERED[reason]).read_text(), SECTIONS[-1]).split())
    if meaning.max_retries is not None:
        assert meaning.max_retries == 2
        assert re.search(r"at most (two retries|twice)", text)
    elif meaning.retry is Retry.FREE:
        assert re.search(r"free retry", text)
    elif meaning.retry is Retry.CHARGED:
        assert "retry is charged" in text
    else:
        assert re.search(r"not retried|no retry|without a retry", text)
    if (weight := WEIGHTS.get(reason.value)) is not None:
        assert re.search(rf"(?<![\d.]){weight:g}(?![\d]|\.\d)", text), (
            f"incidents of kind {reason.value} count {weight}"
        )
    else:
        assert re.search(r"[Nn]o (node is blamed|incident)", text)


def test_a_reason_carries_the_address_of_its_runbook() -> None:
    shown = explain("network_error")
    assert shown is not None
    assert shown["runbook"] == "/docs/runbooks/reasons/network#network_error"
    assert (explain("completed") or {})["runbook"] == ""


def test_the_commands_of_runbooks_are_shell() -> None:
    blocks = [each.text for each in EXAMPLES if each.place.startswith("docs/runbooks/")]
    assert len(blocks) > len(PAGES)
    done = subprocess.run(["bash", "-n"], input="\n".join(blocks), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_alert_has_a_runbook_in_the_index_and_none_is_left_over() -> None:
    index = (FOLDER / "README.md").read_text()
    assert {path.stem for path in FOLDER.glob("alerts/*.md")} == {alert.name for alert in ALERTS}
    for alert in ALERTS:
        assert f"| `{alert.name}` | {alert.severity} | [{alert.name}](alerts/{alert.name}.md) |" in index


@pytest.mark.parametrize("file", ALERT_PAGES, ids=lambda file: file.stem)
def test_a_runbook_of_an_alert_has_its_sections_and_links_to_pages(file: Path) -> None:
    text = file.read_text()
    assert text.startswith(f"# {file.stem}\n")
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert all(section(f"{text}\n", name).strip() for name in SECTIONS)
    assert linked_pages(file) <= pages()


def test_the_address_in_a_rule_is_that_of_a_page() -> None:
    for group in rules_document("https://athanor.example.org")["groups"]:  # type: ignore[attr-defined] # plain JSON
        for rule in group["rules"]:
            path = rule["annotations"]["runbook_url"].removeprefix("https://athanor.example.org/docs/")
            assert f"{path}.md" in pages()
