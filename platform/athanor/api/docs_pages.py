"""The documentation under /docs/: the site that `python -m deploy.docs` builds from docs/.

Readable without signing in: it comes with the version and contains nothing of an installation.
"""

import base64
import hashlib
import mimetypes
import re
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.utils.http import quote_etag
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import condition, require_safe

from athanor.api import site
from athanor.api.headers import CSP, page_policy

FRESH_SECONDS = 300
INDEX = "index.html"
_LEFT_OUT = {"404.html", "sitemap.xml", "sitemap.xml.gz"}
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def _etag(request: HttpRequest, name: str = "") -> str | None:
    file = _file_at(name)
    if file is None:
        return None
    status = file.stat()
    return quote_etag(f"{status.st_mtime_ns:x}-{status.st_size:x}")


@require_safe
@gzip_page
@condition(etag_func=_etag)
def page(request: HttpRequest, name: str = "") -> HttpResponse:
    """Return the page or file `name`, a page with or without .html; a folder is its index."""
    file = _file_at(name)
    if file is None:
        if _file_at(f"{name}/") is not None:
            return HttpResponsePermanentRedirect(f"/docs/{name}/")
        return _not_built() if not files() else site.unknown(request)
    content = file.read_bytes()
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    answer = HttpResponse(content, content_type=f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
    answer.headers["Cache-Control"] = f"public, max-age={FRESH_SECONDS}"
    if kind == "text/html":
        answer.headers[CSP] = page_policy(scripts=_digests(content))
    return answer


def files() -> dict[str, Path]:
    """Return the files of the site by their paths below /docs/."""
    return _files_in(settings.ATHANOR.docs_dir)


@lru_cache(maxsize=4)
def _files_in(folder: Path) -> dict[str, Path]:
    found = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    return {name: file for name, file in found.items() if name not in _LEFT_OUT and not file.name.startswith(".")}


def _file_at(name: str) -> Path | None:
    # Looked up among the files that exist: no part of the address reaches the file system.
    if not name or name.endswith("/"):
        return files().get(f"{name}{INDEX}")
    return files().get(name) or files().get(f"{name}.html")


def _digests(content: bytes) -> list[str]:
    """Return the digests of a page's inline scripts, which come with the theme, as a policy names them."""
    digests = (hashlib.sha256(script).digest() for script in _INLINE_SCRIPT.findall(content))
    return [f"sha256-{base64.b64encode(digest).decode()}" for digest in digests]


def _not_built() -> HttpResponse:
    text = "The documentation is not built. Run `make docs`, and restart the web; its source is in docs/."
    return HttpResponse(text, status=404, content_type="text/plain")
