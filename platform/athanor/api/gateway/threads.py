"""Run a WSGI application in threads that never wait for a client: body and response are passed complete."""

import asyncio
import contextvars
import io
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from wsgiref.util import FileWrapper

from a2wsgi.wsgi import build_environ
from django.db import close_old_connections

from athanor.api.gateway.body import Message, Scope

Send = Callable[[Message], Awaitable[None]]
PIECE_BYTES = 64 * 1024


@dataclass
class Answer:
    """The response of a view. A file is read piece by piece as the client receives it."""

    code: int = 0  # the HTTP status
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    file: Any = None

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces of at most PIECE_BYTES."""
        if self.file is not None:
            while piece := self.file.filelike.read(PIECE_BYTES):
                yield piece
            return
        for start in range(0, len(self.body), PIECE_BYTES):
            yield self.body[start : start + PIECE_BYTES]

    async def send(self, send: Send) -> None:
        """Send the response; `send` waits while the connection's buffer is full."""
        try:
            await send({"type": "http.response.start", "status": self.code, "headers": self.headers})
            if self.file is None and len(self.body) <= PIECE_BYTES:
                await send({"type": "http.response.body", "body": self.body, "more_body": False})
                return
            for piece in self.pieces():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if self.file is not None:
                self.file.close()


class ViewThreads:
    """`count` threads that run `application`, one request at a time each."""

    def __init__(self, application: Any, count: int, name: str) -> None:
        self._application = application
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=f"views-{name}")

    async def answer(self, scope: Scope, body: bytes) -> Answer:
        """Run the application for one request in a thread. Return its response."""
        environ: Any = build_environ(scope, io.BytesIO(body))  # type: ignore[arg-type] # it is only stored
        environ["CONTENT_LENGTH"] = str(len(body))  # also of a chunked body: Django reads nothing without it
        environ["wsgi.file_wrapper"] = FileWrapper
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._executor, run, self._run, environ)

    def shutdown(self) -> None:
        """Stop the threads when their requests are done."""
        self._executor.shutdown()

    def _run(self, environ: dict[str, Any]) -> Answer:
        answer = Answer()

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], None]:
            answer.code = int(status.partition(" ")[0])
            answer.headers = [
                (name.strip().lower().encode("latin1"), value.strip().encode("latin1")) for name, value in headers
            ]
            return written.append

        written: list[bytes] = []
        result = self._application(environ, start_response)
        if isinstance(result, FileWrapper):
            answer.file = result
            close_old_connections()  # the file is closed, and the request ended, on another thread
            return answer
        try:
            answer.body = b"".join([*written, *result])
        finally:
            if hasattr(result, "close"):
                result.close()
        return answer
