"""The documentation's site as the web serves it. What the site contains: tests/docs/test_site.py."""

import gzip
from pathlib import Path

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db
SCRIPT = "var base=new URL('..',location)"
PAGE = f'<!doctype html><head><script>{SCRIPT}</script></head><h1>{{title}}</h1><script src="assets/x.js"></script>'
DIGEST = "'sha256-2LyRdvMlvwlQVvXwij7gi6LI1Fok+SnRJ9BonCil8PU='"


@pytest.fixture
def docs(tmp_path: Path, settings) -> Path:
    """Return the folder of a small site that is served."""
    folder = tmp_path / "site"
    for name in ("index", "runbooks/index", "runbooks/reasons/hang", "404"):
        file = folder / f"{name}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PAGE.replace("{title}", name))
    (folder / "search").mkdir()
    (folder / "search" / "search_index.json").write_text("[]" * 2000)
    (folder / ".athanor-sources").write_text("a digest")
    (tmp_path / "secret.html").write_text("not of the site")
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"docs_dir": folder})
    return folder


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("", "index"), ("index.html", "index"), ("runbooks/", "runbooks/index"),
        ("runbooks/reasons/hang", "runbooks/reasons/hang"), ("runbooks/reasons/hang.html", "runbooks/reasons/hang"),
    ],
)  # fmt: skip
def test_a_page_is_served_without_signing_in(docs: Path, address: str, title: str) -> None:
    answer = Client().get(f"/docs/{address}")
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert f"<h1>{title}</h1>" in answer.content.decode()
    assert answer["Cache-Control"] == "public, max-age=300"


def test_the_policy_allows_the_inline_scripts_of_the_page_and_no_others(docs: Path) -> None:
    policy = Client().get("/docs/")["Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["script-src"] == f"'self' {DIGEST}"
    assert directives["style-src"] == "'self'"
    assert directives["default-src"] == "'none'"


@pytest.mark.parametrize(("address", "to"), [("/docs", "/docs/"), ("/docs/runbooks", "/docs/runbooks/")])
def test_a_folder_without_its_slash_is_redirected(docs: Path, address: str, to: str) -> None:
    answer = Client().get(address)
    assert (answer.status_code, answer["Location"]) == (301, to)


def test_a_file_is_compressed_and_sent_once(docs: Path) -> None:
    answer = Client().get("/docs/search/search_index.json", headers={"Accept-Encoding": "gzip"})
    assert (answer["Content-Type"], answer["Content-Encoding"]) == ("application/json", "gzip")
    assert gzip.decompress(answer.content) == b"[]" * 2000
    again = Client().get(
        "/docs/search/search_index.json", headers={"Accept-Encoding": "gzip", "If-None-Match": answer["ETag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        "runbooks/reasons/none", "runbooks/reasons/", "runbooks/reasons", "404", "404.html", ".athanor-sources",
        "runbooks/../../secret.html", "%2e%2e/secret.html", "../secret.html", "..%2fsecret", "index.html%00",
        "/etc/passwd", "//etc/passwd", "runbooks//index.html",
    ],
)  # fmt: skip
def test_what_is_no_page_is_not_found(docs: Path, name: str) -> None:
    answer = Client().get(f"/docs/{name}")
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


def test_only_reading_is_allowed(docs: Path) -> None:
    assert Client().post("/docs/runbooks/").status_code == 405


def test_without_a_built_site_the_remedy_is_named(tmp_path: Path, settings) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"docs_dir": tmp_path / "none"})
    answer = Client().get("/docs/runbooks/reasons/hang")
    assert answer.status_code == 404
    assert "`make docs`" in answer.content.decode()
