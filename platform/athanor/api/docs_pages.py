"""Pages of docs/ for people who run jobs and clusters, above all the runbooks, as HTML.

Readable without signing in: they come with the version and contain nothing of an installation.
"""

import posixpath
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import mark_safe
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from athanor.api import site
from athanor.core.runbooks import anchor

_PACKAGED = Path(__file__).resolve().parents[1] / "docs"  # pyproject.toml puts docs/ into the wheel
FOLDER = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "docs"
PARTS = ("runbooks", "how-to", "operations", "concepts")
INDEX = "README.md"
FRESH_SECONDS = 300


@require_safe
def page(request: HttpRequest, name: str) -> HttpResponse:
    """Return the page `name`, with or without .md; a folder is its README.md."""
    # Looked up among the pages that exist: no part of the address reaches the file system.
    file = f"{name}{INDEX}" if name.endswith("/") else name if name.endswith(".md") else f"{name}.md"
    if file not in pages():
        return site.unknown(request)
    title, body = rendered(file)
    content = {"title": title, "body": mark_safe(body)}  # noqa: S308 - HTML in the Markdown is escaped
    answer = render(request, "athanor/docs_page.html", content)
    answer.headers["Cache-Control"] = f"public, max-age={FRESH_SECONDS}"
    return answer


@lru_cache(maxsize=1)
def pages() -> frozenset[str]:
    """Return the paths of the pages that are served, relative to docs/."""
    files = (file for part in PARTS for file in (FOLDER / part).rglob("*.md"))
    return frozenset(file.relative_to(FOLDER).as_posix() for file in files)


@lru_cache(maxsize=256)
def rendered(file: str) -> tuple[str, str]:
    """Return the title and the HTML of a page."""
    return to_html((FOLDER / file).read_text(encoding="utf-8"), file)


def to_html(text: str, file: str) -> tuple[str, str]:
    """Return the title and the HTML of Markdown. HTML in it is escaped. Links to pages that are not served here become
    text: a page is addressed as its file is, so that the other links lead where they do in the repository."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    title = ""
    for token, following in zip(tokens, tokens[1:], strict=False):
        if token.type == "heading_open":
            title = title or following.content
            token.attrSet("id", anchor(following.content))
        if following.children:
            following.children = _without_dead_links(following.children, posixpath.dirname(file))
    return title.replace("`", ""), str(parser.renderer.render(tokens, parser.options, {}))


def _without_dead_links(tokens: list[Token], folder: str) -> list[Token]:
    found, is_dead = [], False
    for token in tokens:
        if token.type == "link_open":
            is_dead = not _is_served(str(token.attrGet("href")), folder)
        if not (is_dead and token.type in ("link_open", "link_close")):
            found.append(token)
    return found


def _is_served(target: str, folder: str) -> bool:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return True
    return not parts.path or posixpath.normpath(posixpath.join(folder, parts.path)) in pages()
