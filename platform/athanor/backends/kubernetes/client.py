"""The client of one API server: few requests, with time-outs, and typed errors."""

import json
import os
import threading
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import httpx

from athanor.backends.base import BackendUnavailable
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.credentials import Credentials, load
from athanor.backends.kubernetes.names import MANAGER

Json = dict[str, Any]
PAGE = 1000
CALL_SECONDS = 14.0  # of a call that takes several requests: the interface allows 15
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    """The API server refused with a 4xx status. `reason` is its own term for it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class KubernetesClient:
    """One client for each cluster's configuration, shared by all threads."""

    def __init__(self, config: KubernetesConfig) -> None:
        self._credentials: Credentials = load(config)
        self._timeout = config.timeout_seconds
        self._http = httpx.Client(
            base_url=self._credentials.server,
            verify=self._credentials.context,
            auth=self._credentials.basic,
            timeout=httpx.Timeout(config.timeout_seconds, connect=min(5.0, config.timeout_seconds)),
            limits=httpx.Limits(max_keepalive_connections=4, keepalive_expiry=30.0),
            trust_env=False,
            headers={"User-Agent": "athanor", "Accept": "application/json"},
        )
        self.is_refused = False
        self._clock: float | None = None  # the server's minus our monotonic one

    @property
    def server(self) -> str:
        """Return the server's address."""
        return self._credentials.server

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def server_now(self) -> float:
        """Return the server's time in seconds since the epoch, by the Date of its last answer."""
        return time.monotonic() + self._clock if self._clock is not None else time.time()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        kind: str = "application/json",
        deadline: float | None = None,
        **query: str | int,
    ) -> httpx.Response:
        """Send a request. Raise Refused for 4xx, BackendUnavailable for every temporary failure."""
        content = None if body is None else json.dumps(body).encode()
        timeout = self._timeout if deadline is None else min(self._timeout, deadline - time.monotonic())
        if timeout <= 0:
            raise BackendUnavailable(f"{self.server} took too long")
        try:
            response = self._http.request(
                method, path, params=query, content=content, timeout=timeout,
                headers={**self._authorization(), **({"Content-Type": kind} if content is not None else {})},
            )  # fmt: skip
        except httpx.HTTPError as error:
            raise BackendUnavailable(f"{self.server} does not answer: {error or type(error).__name__}") from error
        self._learn(response)
        return response

    def json(self, method: str, path: str, **options: Any) -> Json:
        """Send a request and return the JSON of its answer."""
        response = self.request(method, path, **options)
        try:
            found: Json = response.json()
        except ValueError as error:
            raise BackendUnavailable(f"{self.server}{path} answered with no JSON") from error
        return found

    def create(self, path: str, body: Json, **options: Any) -> Json:
        """Create an object; unknown fields are refused."""
        return self.json("POST", path, body=body, fieldManager=MANAGER, fieldValidation="Strict", **options)

    def apply(self, path: str, body: Json, **options: Any) -> Json:
        """Create or update an object by server-side apply; fields of other managers stay."""
        return self.json(
            "PATCH",
            path,
            body=body,
            kind=APPLY,
            fieldManager=MANAGER,
            force="true",
            fieldValidation="Strict",
            **options,
        )

    def merge(self, path: str, body: Json, **options: Any) -> Json:
        """Apply a JSON merge patch."""
        return self.json("PATCH", path, body=body, kind=MERGE, fieldManager=MANAGER, **options)

    def list(self, path: str, *, page: int = PAGE, deadline: float | None = None, **query: str | int) -> Iterator[Json]:
        """Yield every page of a listing. If the continuation has expired, start again, once. Raise as `request`."""
        if deadline is None:
            deadline = time.monotonic() + CALL_SECONDS
        following, is_again = "", False
        while True:
            more = {"continue": following} if following else {}
            try:
                found = self.json("GET", path, limit=page, deadline=deadline, **query, **more)
            except Refused as error:
                if error.code != 410:
                    raise
                if is_again:
                    raise BackendUnavailable(f"{self.server}{path}: {error}") from error
                following, is_again = "", True
                continue
            yield found
            following = (found.get("metadata") or {}).get("continue") or ""
            if not following:
                return

    def stream(self, path: str, stop: threading.Event, silence_seconds: float, **query: str | int) -> Iterator[Json]:
        """Yield OPEN once it is answered, then the events of a watch, until it ends. Raise as `request`."""
        timeout = httpx.Timeout(self._timeout, read=silence_seconds)
        try:
            with self._http.stream(
                "GET", path, params={**query, "watch": "true"}, headers=self._authorization(), timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    response.read()
                self._learn(response)
                yield {"type": "OPEN", "object": {}}
                for line in response.iter_lines():
                    if stop.is_set():
                        return
                    if line:
                        yield json.loads(line)
        except (httpx.HTTPError, ValueError) as error:
            raise BackendUnavailable(
                f"the watch of {self.server}{path} ended: {error or type(error).__name__}"
            ) from error

    def _authorization(self) -> dict[str, str]:
        token = self._credentials.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _learn(self, response: httpx.Response) -> None:
        """Record the server's clock, and raise for an error.

        A token that is refused may be renewed, so that is temporary.
        """
        if date := response.headers.get("Date"):
            self._clock = parsedate_to_datetime(date).timestamp() - time.monotonic()
        code = response.status_code
        if code < 400:
            return
        reason, message = status_of(response)
        if code == 401:
            self._credentials.forget()
            self.is_refused = True
            raise BackendUnavailable(f"{self.server} does not know us: {message}")
        if code in (408, 429) or code >= 500:
            raise BackendUnavailable(f"{self.server}: {message}")
        raise Refused(code, reason, message)


def status_of(response: httpx.Response) -> tuple[str, str]:
    """Return the reason and the message of an error answer."""
    try:
        status = response.json()
        return str(status.get("reason") or ""), str(status.get("message") or f"HTTP {response.status_code}")
    except (ValueError, AttributeError):
        return "", f"HTTP {response.status_code}"


def path(group: str, plural: str, namespace: str = "", name: str = "", sub: str = "") -> str:
    """Return a URL path: `path("batch/v1", "jobs", "ns", "a")` is /apis/batch/v1/namespaces/ns/jobs/a."""
    parts = ["api" if group == "v1" else "apis", group]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [part for part in (plural, quote(name, safe=""), sub) if part]
    return "/" + "/".join(parts)


_CLIENTS: dict[tuple[int, str], KubernetesClient] = {}
_LOCK = threading.Lock()


def client_of(key: str, config: KubernetesConfig) -> KubernetesClient:
    """Return the client of a configuration, cached for the process until its credentials are refused."""
    with _LOCK:
        client = _CLIENTS.get((os.getpid(), key))
        if client is None or client.is_refused:
            client = _CLIENTS[(os.getpid(), key)] = KubernetesClient(config)
        return client
