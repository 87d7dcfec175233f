"""The ASGI application around Django's WSGI application: a lane of threads for each kind of request."""

import json
from typing import Any

from a2wsgi import WSGIMiddleware
from ulid import ULID

from athanor.api.errors import CONTENT_TYPE, problem_document
from athanor.api.gateway.body import BodyReader, ClientGone, Receive, Scope, at_least_rate
from athanor.api.gateway.threads import Answer, Send, ViewThreads
from athanor.api.limits import DEFAULT_BODY_BYTES, Lane, limits_of
from athanor.core.errors import AthanorError
from athanor.dispatch import tokens

# More threads for small requests would compete for the interpreter lock: measured with 32 clients, p99 of a submit is
# 252 to 345 ms with three and 287 to 375 ms with six. The database pool has a connection for each.
THREADS = {Lane.HEALTH: 2, Lane.AGENT: 4, Lane.QUICK: 3}
TRANSFER_THREADS = 12


class Gateway:
    """Reads the body, runs the view in the threads of its lane, and sends the response."""

    def __init__(self, application: Any) -> None:
        self._bodies = BodyReader()
        self._lanes = {lane: ViewThreads(application, count, lane) for lane, count in THREADS.items()}
        self._transfers = WSGIMiddleware(application, workers=TRANSFER_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection of the ASGI server."""
        if scope["type"] != "http":
            await self._transfers(scope, receive, send)  # type: ignore[arg-type] # lifespan
            return
        limits = limits_of(scope["path"])
        if limits.body_bytes is None:
            await self._transfers(scope, at_least_rate(receive), send)  # type: ignore[arg-type] # a plain dict
            return
        allowed = limits.body_bytes
        if limits.lane is Lane.AGENT and not _is_signed(scope):
            allowed = min(allowed, DEFAULT_BODY_BYTES)
        try:
            body = await self._bodies.read(scope, receive, allowed)
        except AthanorError as error:
            await _refusal(error).send(send)
            return
        except ClientGone:
            return
        answer = await self._lanes[limits.lane].answer(scope, body)
        await answer.send(send)

    def shutdown(self) -> None:
        """Wait for the views that run."""
        for lane in self._lanes.values():
            lane.shutdown()
        self._transfers.executor.shutdown()


def _is_signed(scope: Scope) -> bool:
    """Return whether the bearer token is one that the platform issued to an attempt, over or not."""
    value = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return tokens.is_signed(value.decode("latin1").partition(" ")[2].strip())


def _refusal(error: AthanorError) -> Answer:
    request_id = f"req_{ULID()}"
    document = problem_document(
        error.status, error.title, error.code, error.message, remedy=error.remedy, request_id=request_id
    )
    body = json.dumps(document).encode()
    headers = {"content-type": CONTENT_TYPE, "content-length": str(len(body)), "x-request-id": request_id}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Answer(code=error.status, headers=encoded, body=body)
