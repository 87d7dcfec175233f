"""Links between pages lead somewhere, and the pages of the server's settings are complete."""

import re
import subprocess

import pytest

from athanor.config.env import Environment
from tests.pages import REPOSITORY

LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True
).stdout.split()


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    broken = []
    for target in LINK.findall((REPOSITORY / page).read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = ((REPOSITORY / page).parent / name).resolve() if name else REPOSITORY / page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            broken.append(target)
    assert broken == []


def test_every_setting_of_the_server_is_listed() -> None:
    page = (REPOSITORY / "docs" / "operations" / "settings.md").read_text()
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", page))
    assert {field.alias for field in Environment.model_fields.values()} - listed == set()


def test_every_path_of_the_architecture_page_exists() -> None:
    """In the table "Where is", a file is relative to the repository, the control plane, or a folder of its row."""
    missing = []
    for row in (REPOSITORY / "ARCHITECTURE.md").read_text().splitlines():
        if not row.startswith("|"):
            continue
        named = re.findall(r"`([\w./-]+\.(?:py|md|json|toml|yaml)|[a-z][\w./-]*/)`", row)
        roots = [REPOSITORY, *(REPOSITORY / name for name in ("platform/athanor", "trainer", "tests/control_plane"))]
        for name in named:
            found = [root / name for root in roots if (root / name).exists()]
            if not found:
                missing.append(name)
            roots += [path if path.is_dir() else path.parent for path in found]
    assert missing == []


def test_every_path_of_the_threat_model_exists_and_each_boundary_says_what_is_not_defended() -> None:
    text = (REPOSITORY / "docs" / "operations" / "threat-model.md").read_text()
    roots = {"code": (REPOSITORY, REPOSITORY / "platform" / "athanor")}
    roots["test"] = (REPOSITORY, REPOSITORY / "tests" / "control_plane")
    rows = [row.split(" | ") for row in re.findall(r"^\| (.+ \| .+ \| `.+` \| `.+`) \|$", text, re.M)]
    named = {(kind, path) for row in rows for kind, cell in zip(roots, row[2:], strict=True)
             for path in re.findall(r"`([^`]+)`", cell)}  # fmt: skip
    assert len(named) > 40
    assert {path for kind, path in named if not any((root / path).exists() for root in roots[kind])} == set()
    boundaries = re.split(r"^### ", text.partition("## Boundaries")[2].partition("\n## ")[0], flags=re.M)[1:]
    assert [part.splitlines()[0] for part in boundaries if "Not defended: " not in part] == []
    assert len(boundaries) == 6
