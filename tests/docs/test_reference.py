"""The generated pages of docs/reference are what the source says, and their example is valid."""

import ast
import re
from pathlib import Path

import pytest

from athanor.cli.main import app
from athanor.core.documents import load_yaml
from athanor.jobs.reasons import Reason
from athanor.specs.validation import parse_spec
from deploy.reference import problem_codes
from deploy.reference.__main__ import FOLDER, PAGES
from tests.pages import EXAMPLES
from tests.pages import PAGES as DOCUMENTS
from tests.spec_models import MODELS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run `make gen`"


def test_the_folder_has_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_the_complete_example_is_a_valid_spec() -> None:
    (example,) = [each for each in EXAMPLES if each.place.startswith("docs/reference/spec.md:")]
    assert parse_spec(load_yaml(example.text)).training is not None


def test_the_page_of_the_spec_has_every_field() -> None:
    rows = (FOLDER / "spec.md").read_text().splitlines()
    for model in MODELS.values():
        for name in model.model_fields:
            assert any(row.startswith(f"| `{name}` |") for row in rows), f"{model.__name__}.{name}"


def test_the_page_of_the_command_line_has_every_command() -> None:
    text = (FOLDER / "cli.md").read_text()
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__.replace("_", "-") if command.callback else "")
        assert f"## `athanor {name}`\n" in text
    for group in app.registered_groups:
        assert f"## `athanor {group.name}`\n" in text


def test_the_page_of_errors_has_every_reason() -> None:
    text = (FOLDER / "errors.md").read_text()
    assert all(f"| `{reason.value}` |" in text for reason in Reason)


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives to headings: lower case, spaces as hyphens, no other punctuation."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_error_has_a_remedy() -> None:
    assert [found.code for found in problem_codes.problems() if not found.remedies] == []


def test_links_to_and_between_the_pages_lead_somewhere() -> None:
    count = 0
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s:]*)\)", path.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            page = (path.parent / name).resolve() if name else path
            if FOLDER in (page.parent, path.parent):
                assert page.exists(), f"{path.name}: {target}"
                assert not anchor or anchor in anchors_of(page.read_text(encoding="utf-8")), f"{path.name}: {target}"
                count += 1
    assert count > 30


PLANTED = """
from athanor.api.errors import problem
from athanor.core import errors
from athanor.core.errors import Conflict, TooLarge


class PlantedError(TooLarge):
    def __init__(self, size):
        super().__init__("planted_by_a_class", f"{size} bytes")


def _refuse(detail, name):
    raise Conflict(name, detail, remedy="take another")


def _passed(is_old):
    _refuse("planted", "planted_by_a_function")
    raise errors.NotFound("job", "x") if is_old else PlantedError(3)


def _answered(is_old):
    code = "planted_old" if is_old else "planted_new"
    return problem(418, "Planted", code, "x")
"""


def with_planted(source: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the codes be read of a platform that is `core/errors.py` and `source`."""
    (folder / "core").mkdir()
    (folder / "core" / "errors.py").write_text((problem_codes.PLATFORM / "core" / "errors.py").read_text())
    (folder / "planted.py").write_text(source)
    ast.parse(source)
    monkeypatch.setattr(problem_codes, "PLATFORM", folder)


def test_a_new_code_is_found_whatever_raises_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_planted(PLANTED, monkeypatch, tmp_path)
    found = {each.code: each for each in problem_codes.problems()}
    planted = {code: sorted(each.statuses) for code, each in found.items() if code.startswith("planted")}
    assert planted == {
        "planted_by_a_class": [413],
        "planted_by_a_function": [409],
        "planted_old": [418],
        "planted_new": [418],
    }
    assert found["planted_by_a_class"].messages == ["… bytes"]
    assert found["planted_by_a_function"].remedies == ["take another"]
    assert found["not_found"].statuses == {404}


def test_a_code_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "from athanor.core.errors import Gone\n\n\ndef f(row):\n    raise Gone(row.code, 'x')\n"
    with_planted(source, monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=r"planted\.py:5"):
        problem_codes.problems()
