"""Addresses of the runbooks: pages of docs/runbooks/, which the web serves under /docs/ (api/docs_pages.py). Pure."""

import re
from collections.abc import Mapping

PREFIX = "/docs/runbooks"


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def shared_path(folder: str, pages: Mapping[str, tuple[str, ...]], topic: str) -> str:
    """Return the path of the page that covers a topic among others, with the anchor of its heading; "" without one."""
    for page, topics in pages.items():
        if topic in topics:
            return f"{PREFIX}/{folder}/{page}#{anchor(topic)}"
    return ""
