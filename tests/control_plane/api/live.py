"""The server's own application on a socket, in a thread of the test, and a reader of its streams."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from a2wsgi import WSGIMiddleware
from django.core.wsgi import get_wsgi_application

from athanor.api.streams.asgi import StreamingApplication
from athanor.api.streams.frames import MEDIA_TYPE
from athanor.api.streams.hub import Hub

PATIENCE_SECONDS = 20.0


@dataclass
class Frame:
    id: str = ""
    event: str = ""
    data: Any = None
    comment: str = ""


class Stream:
    """One open answer; `next` waits for a frame, at most for as long as the client's timeout."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def next(self) -> Frame:
        frame = Frame()
        for line in self._lines:
            if not line:
                if frame != Frame():
                    return frame
                continue
            name, _, value = line.partition(": ")
            if name == "id":
                frame.id = value
            elif name == "event":
                frame.event = value
            elif name == "data":
                frame.data = json.loads(value)
            elif name == "":
                frame.comment = value
        raise EOFError("the stream has ended")

    def next_event(self) -> Frame:
        """Passing over heartbeats and progress."""
        while True:
            frame = self.next()
            if frame.id:
                return frame

    def next_progress(self) -> Frame:
        while True:
            frame = self.next()
            if frame.event:
                return frame


class LiveServer:
    def __init__(self) -> None:
        self.hub = Hub()
        self._views = WSGIMiddleware(get_wsgi_application(), workers=4)
        application: Any = StreamingApplication(self._views, self.hub)
        config = uvicorn.Config(application, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._ready = threading.Event()
        self._server.startup = self._announcing(self._server.startup)  # type: ignore[method-assign] # no hook for it
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def _announcing(self, startup: Any) -> Any:
        async def started(*arguments: Any, **named: Any) -> None:
            await startup(*arguments, **named)
            self._ready.set()

        return started

    @contextmanager
    def stream(self, path: str, token: str, **headers: str) -> Iterator[Stream]:
        with (
            httpx.Client(timeout=PATIENCE_SECONDS) as client,
            client.stream("GET", self.url + path, headers=_headers(token, Accept=MEDIA_TYPE, **headers)) as response,
        ):
            yield Stream(response)

    def get(self, path: str, token: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=_headers(token), timeout=PATIENCE_SECONDS + 30)

    def close(self) -> None:
        for follower in list(self.hub._everybody):
            follower.end()
        self._server.should_exit = True
        self._thread.join()
        self._views.executor.shutdown()
        self.hub._threads.shutdown()


def _headers(token: str, **more: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"Authorization": f"Bearer {token}", **named} if token else named
