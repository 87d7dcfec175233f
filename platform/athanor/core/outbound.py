"""The HTTP client for addresses that users choose: one request to a checked address, without redirects or proxies.

Time and the size of the response are limited. Which addresses are allowed: `trainer.contract.addresses`.
"""

import http.client
import socket
import ssl
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

from django.conf import settings

from athanor.core.errors import FieldProblem, Invalid
from trainer.contract.addresses import Allowed, Refused, Target, check, resolve

CONNECT_SECONDS = 5.0
WHOLE_SECONDS = 15.0
MAX_RESPONSE_BYTES = 1000


@dataclass(frozen=True)
class Response:
    """The response to one request. `status` is 0 if there was none, and `error` says why.

    `seconds` is the duration of the request.
    """

    status: int
    seconds: float
    error: str = ""
    answer: str = ""

    @property
    def is_success(self) -> bool:
        """Return whether the status is 2xx."""
        return 200 <= self.status < 300


def allowed() -> Allowed:
    """Return what ATHANOR_OUTBOUND_ALLOW exempts for every use."""
    return Allowed(settings.ATHANOR.outbound_allow)


def allowed_for_webhooks() -> Allowed:
    """Return what is exempt for webhooks and providers of series: ATHANOR_WEBHOOK_ALLOW too."""
    return Allowed(f"{settings.ATHANOR.outbound_allow},{settings.ATHANOR.webhook_allow}")


def check_url(url: str, exempt: Allowed, *, pointer: str = "/url", code: str, setting: str) -> None:
    """Raise Invalid for what can be seen without resolving the name."""
    try:
        check(url, exempt)
    except Refused as refused:
        detail = f"{pointer.rpartition('/')[2]}={url!r}: {refused}"
        remedy = f"name a public https address; others must be listed in {setting} by an administrator"
        raise Invalid(code, detail, remedy=remedy, problems=(FieldProblem(pointer, "url", detail),)) from refused


def check_webhook_url(url: str) -> None:
    """Raise Invalid unless webhooks and providers of series may have this address."""
    check_url(url, allowed_for_webhooks(), code="invalid_webhook_url", setting="ATHANOR_WEBHOOK_ALLOW")


def post(url: str, body: bytes, headers: dict[str, str], exempt: Allowed) -> Response:
    """Send a POST request; at most MAX_RESPONSE_BYTES bytes of the response are read. Never raises for the network."""
    return _request("POST", url, body, headers, exempt, MAX_RESPONSE_BYTES)


def get(url: str, exempt: Allowed, *, max_bytes: int) -> Response:
    """Send a GET request; an answer of more than `max_bytes` bytes is an error."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    response = _request("GET", url, None, headers, exempt, max_bytes + 1)
    if len(response.answer) > max_bytes:
        return Response(response.status, response.seconds, f"answered more than {max_bytes} bytes")
    return response


def _request(
    method: str, url: str, body: bytes | None, headers: dict[str, str], exempt: Allowed, max_bytes: int
) -> Response:
    began = time.monotonic()
    try:
        status, answer = _exchange(method, resolve(url, exempt), body, headers, max_bytes)
    except Refused as refused:
        return Response(0, time.monotonic() - began, f"not sent: {refused}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Response(0, time.monotonic() - began, f"{type(error).__name__}: {error}"[:500])
    error_text = "" if 200 <= status < 300 else f"answered {status}"
    if 300 <= status < 400:
        error_text = f"answered {status}; redirects are not followed"
    return Response(status, time.monotonic() - began, error_text, answer)


@cache
def _tls_context() -> ssl.SSLContext:
    """Return the context of all connections: loading the machine's certificates takes longer than a small request."""
    return ssl.create_default_context()


def _exchange(
    method: str, target: Target, body: bytes | None, headers: dict[str, str], max_bytes: int
) -> tuple[int, str]:
    with ExitStack() as opened:
        link = socket.create_connection((target.address, target.port), timeout=CONNECT_SECONDS)
        opened.callback(link.close)
        # A timeout of the socket is for each read; a server that sends a byte every few seconds is cut off by this one.
        wire = [link]
        deadline = threading.Timer(WHOLE_SECONDS, lambda: _cut(wire[-1]))
        deadline.daemon = True
        deadline.start()
        opened.callback(deadline.cancel)
        connection: http.client.HTTPConnection
        if target.scheme == "https":
            tls = _tls_context().wrap_socket(link, server_hostname=target.host, do_handshake_on_connect=False)
            opened.callback(tls.close)
            wire.append(tls)
            tls.do_handshake()
            connection = http.client.HTTPSConnection(target.host, target.port)
        else:
            connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = wire[-1]
        connection.sock.settimeout(WHOLE_SECONDS)
        connection.request(method, target.path, body=body, headers=headers)
        response = opened.enter_context(connection.getresponse())
        return response.status, _text(response.read(max_bytes))


def _cut(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


def _text(raw: bytes) -> str:
    """For the log: PostgreSQL's JSON holds no NUL."""
    return raw.decode(errors="replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
