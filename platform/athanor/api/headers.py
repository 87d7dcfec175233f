"""Security and caching headers of responses."""

from collections.abc import Callable, Iterable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

CSP = "Content-Security-Policy"
_NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"
_PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in ("camera", "microphone", "geolocation", "payment", "usb", "serial", "display-capture")
)


def page_policy(nonce: str = "", scripts: Iterable[str] = ()) -> str:
    """Return the policy of a page: files of this server only. Style elements that the dashboard's components make carry
    the nonce of the page. `scripts`: digests of inline scripts that the page contains, as `sha256-...`."""
    policy = [
        _NOTHING,
        " ".join(["script-src 'self'", *(f"'{digest}'" for digest in scripts)]),
        f"style-src 'self' 'nonce-{nonce}'" if nonce else "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
    ]
    if not settings.SIGN_ON:  # its form redirects to the provider's addresses
        policy.append("form-action 'self'")
    return "; ".join(policy)


class SecurityHeadersMiddleware:
    """Sets the headers that the view did not set. Responses of the API are not cached: some contain keys."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle a request."""
        response = self._get_response(request)
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        response.headers.setdefault(CSP, page_policy() if is_page else _NOTHING)
        response.headers.setdefault("Permissions-Policy", _PERMISSIONS)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        if request.path.startswith("/api/"):
            response.headers.setdefault("Cache-Control", "no-store")
        return response
