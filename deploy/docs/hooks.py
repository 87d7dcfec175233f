"""What mkdocs.yml cannot express: the order of the sections, headings' anchors as on GitHub, and no HTML in pages."""

import re

from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from athanor.core.runbooks import anchor

SECTIONS = ("Tutorial", "How to", "Reference", "Concepts", "Operations", "Runbooks", "Contributing")


class EscapeHtml(Extension):
    """Shows HTML in a page as text."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Leave out what would pass HTML through."""
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")


def on_config(config: MkDocsConfig) -> None:
    """Set the extensions that are not settings."""
    config.markdown_extensions.append(EscapeHtml())  # type: ignore[arg-type]  # an extension may be an object, too
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda heading, separator: anchor(heading)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Put the first page and the sections into reading order; other pages come last."""
    nav.items.sort(key=_place)


def _place(item: StructureItem) -> int:
    if isinstance(item, Page) and item.is_homepage:
        return -1
    return SECTIONS.index(item.title) if item.title in SECTIONS else len(SECTIONS)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave out the comment of a generated page."""
    return re.sub(r"^<!--.*?-->\n", "", markdown, count=1, flags=re.DOTALL | re.MULTILINE)
