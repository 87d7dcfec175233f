"""The documentation's site: built as `make docs` does, each page as CommonMark reads it, and usable in a browser."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from athanor.core.runbooks import anchor
from deploy.docs.hooks import SECTIONS
from tests.pages import REPOSITORY

DOCS = REPOSITORY / "docs"
SOURCES = sorted(file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md"))
COMPARED = {
    "h1",
    "h2",
    "h3",
    "h4",
    "li",
    "ul",
    "ol",
    "table",
    "tr",
    "th",
    "td",
    "pre",
    "blockquote",
    "code",
    "em",
    "strong",
}
ARTICLE = re.compile(r"<article[^>]*>(.*)</article>", re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^( *)```.*?^ *```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site. Broken links and anchors, and pages without a place, fail here."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "deploy.docs", str(folder)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


def html_of(source: str, built: Path) -> str:
    """Return a page's HTML."""
    return (built / re.sub(r"README\.md$", "index.md", source)).with_suffix(".html").read_text()


class Outline(HTMLParser):
    """Collects the elements of HTML, without what is in preformatted text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self._depth = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        if tag in COMPARED and not self._depth:
            self.elements.append(tag)
        self._depth += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        """Note the end of preformatted text."""
        self._depth -= tag == "pre"


def test_every_page_has_the_structure_that_commonmark_gives_it(built: Path) -> None:
    """Lists, tables and code as on a page of the repository: the site's Markdown has other rules for indented text."""
    reader = MarkdownIt("commonmark").enable("table")
    differing = []
    for source in SOURCES:
        article = ARTICLE.search(html_of(source, built))
        assert article, source
        expected = Outline(reader.render((DOCS / source).read_text())).elements
        if Outline(article[1]).elements != expected:
            differing.append(source)
    assert differing == [], "indent what belongs to a list item by four spaces, with an empty line around it"


def test_headings_have_the_anchors_that_links_and_runbooks_use(built: Path) -> None:
    missing = []
    for source in SOURCES:
        page = html_of(source, built)
        headings = HEADING.findall(FENCED.sub("", (DOCS / source).read_text()))
        missing += [(source, heading) for heading in headings if f'id="{anchor(heading)}"' not in page]
    assert missing == []


def test_every_page_is_in_the_navigation_and_sections_are_in_reading_order(built: Path) -> None:
    home = html_of("README.md", built)
    targets = {target for target in re.findall(r'href="([^"#]+\.html)"', home)}
    assert targets >= {re.sub(r"README\.md$", "index.md", name).replace(".md", ".html") for name in SOURCES}
    tabs = [tab.strip() for tab in re.findall(r'class="md-tabs__link">([^<]*)<', home)]
    assert tabs[: len(SECTIONS) + 1] == ["Documentation", *SECTIONS]


def test_nothing_comes_from_elsewhere(built: Path) -> None:
    """No script, style, font or image of another server."""
    for source in SOURCES:
        page = html_of(source, built)
        assert re.findall(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]*"', page) == [], source


def test_html_in_a_page_is_text_and_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text(
        "# Home\n\n<!-- not shown -->\n<b>bold</b> <script>alert(1)</script>\n\n<div>x</div>\n"
    )
    configuration = tmp_path / "mkdocs.yml"
    text = (REPOSITORY / "deploy" / "docs" / "mkdocs.yml").read_text()
    text = text.replace("../../docs", "docs").replace("../../build/docs", "site")
    configuration.write_text(text.replace("hooks.py", str(REPOSITORY / "deploy" / "docs" / "hooks.py")))
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(configuration)]
    subprocess.run(build, cwd=REPOSITORY, capture_output=True, check=True)
    page = (tmp_path / "site" / "index.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>bold" not in page
    assert "<div>x" not in page
    assert "not shown" not in page
    (docs / "README.md").write_text("# Home\n\n[gone](gone.md) [part](#nothing)\n")
    failed = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "'gone.md'" in failed.stderr
    assert "'#nothing'" in failed.stderr
