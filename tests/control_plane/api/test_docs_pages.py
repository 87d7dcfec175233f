"""Pages of docs/ as the web serves them."""

import re
from urllib.parse import urljoin

import pytest
from django.test import Client

from athanor.api import docs_pages
from athanor.core.runbooks import anchor

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", sorted(docs_pages.pages()))
def test_every_page_is_served_without_signing_in(name: str) -> None:
    answer = Client().get(f"/docs/{name.removesuffix('.md')}")
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/html; charset=utf-8")
    page = answer.content.decode()
    assert page.count("<h1") == 1
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert not re.search(r"<script|<style|style=|onload=", page), "the policy allows no inline script or style"


def test_links_of_a_page_lead_to_served_pages_and_headings() -> None:
    at = "/docs/runbooks/reasons/network"
    linked = re.findall(r'<a href="([^"]+)"', Client().get(at).content.decode())
    led_to = {urljoin(at, address) for address in linked}
    assert "/docs/operations/clusters.md" in led_to
    for address in led_to - {"/"}:
        assert Client().get(address).status_code == 200, address


def test_a_folder_is_its_index_and_a_heading_has_its_anchor() -> None:
    index = Client().get("/docs/runbooks/")
    assert b"<title>Runbooks - Athanor</title>" in index.content
    assert b'href="reasons/hang.md"' in index.content
    page = Client().get("/docs/runbooks/findings/slurm-settings").content
    assert f'id="{anchor("MinJobAge")}"'.encode() in page


@pytest.mark.parametrize(
    "name",
    [
        "runbooks/reasons/none", "runbooks/reasons/", "runbooks", "reference/errors", "contributing/release",
        "runbooks/../../README", "runbooks/%2e%2e/%2e%2e/README.md", "../pyproject.toml", "..%2f..%2fetc%2fpasswd",
        "runbooks/reasons/hang.md%00", "/etc/passwd", "runbooks//reasons/hang",
    ],
)  # fmt: skip
def test_what_is_no_page_is_not_found(name: str) -> None:
    answer = Client().get(f"/docs/{name}")
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


def test_only_reading_is_allowed() -> None:
    assert Client().post("/docs/runbooks/").status_code == 405


def test_html_in_a_page_is_escaped_and_dead_links_become_text() -> None:
    text = (
        "# A <b>title</b>\n\n<script>alert(1)</script>\n\n[bad](javascript:alert(1)) <img src=x onerror=alert(1)>\n\n"
        "[gone](nothing.md) [out](../../../etc/passwd) [here](../how-to/check-nodes.md#preflight) [part](#b)\n"
    )
    _, body = docs_pages.to_html(text, "runbooks/README.md")
    assert "<script" not in body
    assert "<img" not in body
    assert "<b>" not in body
    assert "&lt;script&gt;" in body
    assert re.findall(r'href="([^"]*)"', body) == ["../how-to/check-nodes.md#preflight", "#b"]
    assert "gone out" in body
