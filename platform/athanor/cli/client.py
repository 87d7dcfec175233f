"""HTTP client for the server: retries safe requests and turns problem documents into CLI errors."""

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from athanor.cli.errors import CliError, ExitCode
from athanor.cli.settings import Account

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
PATIENCE_SECONDS = 15.0
FIRST_DELAY_SECONDS = 0.25
MAX_DELAY_SECONDS = 5.0
TRY_AGAIN = {429, 502, 503, 504}
EXIT_CODES = {401: ExitCode.AUTHENTICATION, 403: ExitCode.AUTHENTICATION, 404: ExitCode.NOT_FOUND}


class ApiError(CliError):
    """A problem+json answer. `code` is stable; `detail` is for people."""

    def __init__(self, status: int, code: str, message: str, details: list[str]) -> None:
        own = ExitCode.SERVER if status >= 500 else ExitCode.USAGE
        super().__init__(EXIT_CODES.get(status, own), message, details)
        self.status = status
        self.code = code


class Client:
    """A client for one server with one token. `wait` sleeps between retries; tests replace it."""

    def __init__(
        self,
        account: Account,
        transport: httpx.BaseTransport | None = None,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = account.url
        self._wait = wait
        self._clock = clock
        self._http = httpx.Client(
            base_url=f"{account.url}/api/v1",
            headers={"Authorization": f"Bearer {account.token}", "Accept": "application/json"},
            timeout=TIMEOUT,
            transport=transport,
        )

    def get(self, path: str, *, patience_seconds: float = PATIENCE_SECONDS, **params: Any) -> Any:
        """Return the answer to GET. Parameters that are None are left out."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._send("GET", path, patience_seconds, params=given)

    def post(
        self,
        path: str,
        json: Any = None,
        *,
        content: Any = None,
        params: Mapping[str, str | list[str]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Retry like a read. The `Idempotency-Key` makes that safe: a request whose answer was lost is not done twice.

        `headers` may name a key of the caller's; `content` is read from the beginning by each try.
        """
        body = {"content": content} if content is not None else {"json": {} if json is None else json}
        keyed = {"Idempotency-Key": f"cli-{uuid.uuid4()}", **(headers or {})}
        return self._send("POST", path, PATIENCE_SECONDS, params=params or {}, headers=keyed, **body)

    def put(self, path: str, json: Any, *, headers: dict[str, str] | None = None) -> Any:
        """Return the answer to PUT."""
        return self._send("PUT", path, PATIENCE_SECONDS, json=json, headers=headers or {})

    def patch(self, path: str, json: Any, *, headers: dict[str, str] | None = None) -> Any:
        """Return the answer to PATCH."""
        return self._send("PATCH", path, PATIENCE_SECONDS, json=json, headers=headers or {})

    def delete(self, path: str) -> Any:
        """Return the answer to DELETE."""
        return self._send("DELETE", path, PATIENCE_SECONDS)

    @contextmanager
    def stream(self, path: str, after: str, quiet_seconds: float) -> Iterator[Iterator[str]]:
        """Yield the lines of an event stream. Raises httpx.HTTPError, also if the server has no streams."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": after}
        timeout = httpx.Timeout(quiet_seconds, connect=TIMEOUT.connect)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            response.raise_for_status()
            yield response.iter_lines()

    def lines(self, path: str, **params: Any) -> Iterator[bytes]:
        """Yield the lines of a file while it is read. Raises CliError if it is refused or breaks off."""
        given = {name: value for name, value in params.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=given) as response:
                if not response.is_success:
                    response.read()
                    raise _problem(response)
                rest = b""
                for chunk in response.iter_bytes():
                    *complete, rest = (rest + chunk).split(b"\n")
                    yield from (line + b"\n" for line in complete)
                if rest:
                    yield rest
        except httpx.TransportError as error:
            raise CliError(ExitCode.SERVER, f"{self.url} cannot be read ({error}): run it again") from error

    def pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield every item of a paginated list."""
        cursor: str | None = None
        while True:
            page = self.get(path, cursor=cursor, **params)
            yield from page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def _send(self, method: str, path: str, patience_seconds: float, **request: Any) -> Any:
        give_up_at = self._clock() + patience_seconds
        delay = FIRST_DELAY_SECONDS
        while True:
            problem: Exception
            try:
                response = self._http.request(method, path, **request)
            except httpx.InvalidURL as error:
                raise CliError(ExitCode.USAGE, f"address {self.url!r}: {error}") from error
            except httpx.TransportError as error:
                problem = CliError(
                    ExitCode.SERVER,
                    f"{self.url} cannot be reached ({error}): check the address and that the server runs (`make up`)",
                )
            else:
                if response.is_success:
                    return _body(response, self.url)
                problem = _problem(response)
                busy = response.status_code == httpx.codes.CONFLICT and "retry-after" in response.headers
                if not busy and response.status_code not in TRY_AGAIN:
                    raise problem
                delay = max(delay, _retry_after(response))
            if self._clock() + delay > give_up_at:
                raise problem
            self._wait(delay * random.uniform(0.8, 1.2))  # noqa: S311 - spreads clients, guards nothing
            delay = min(delay * 2, MAX_DELAY_SECONDS)


def _body(response: httpx.Response, url: str) -> Any:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise CliError(
            ExitCode.SERVER, f"{url} did not answer in JSON: is it the address of an Athanor server?"
        ) from error


def _retry_after(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return min(float(value), MAX_DELAY_SECONDS) if value.isdigit() else 0.0


def _problem(response: httpx.Response) -> ApiError:
    try:
        document = response.json()
    except ValueError:
        document = {}
    if not isinstance(document, dict):
        document = {}
    message = document.get("detail") or document.get("title") or f"the server answered {response.status_code}"
    if document.get("remedy"):
        message = f"{message.rstrip('.')}: {document['remedy']}"
    elif response.status_code == httpx.codes.UNAUTHORIZED:
        message = f"{message.rstrip('.')}: run `athanor login`"
    if response.is_server_error and document.get("request_id"):
        message = f"{message} (request {document['request_id']})"
    details = [f"{entry.get('pointer') or '/'}: {entry.get('detail')}" for entry in document.get("errors") or []]
    return ApiError(response.status_code, str(document.get("code", "")), message, details)
