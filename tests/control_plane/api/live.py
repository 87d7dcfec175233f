"""The server's own application on a socket, in a thread of the test, and a reader of its streams."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from django.core.wsgi import get_wsgi_application

from athanor.api.agent.long_polls import LongPollingApplication, LongPolls
from athanor.api.gateway.application import Gateway
from athanor.api.streams.asgi import StreamingApplication
from athanor.api.streams.frames import MEDIA_TYPE
from athanor.api.streams.hub import Hub
from athanor.config.server import configuration
from deploy.local.handle import wait_until

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
        """Return the next event, skipping heartbeats and progress."""
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
    def __init__(self, trusted_proxies: str = "") -> None:
        self.hub = Hub()
        self._gateway = Gateway(get_wsgi_application())
        self.polls = LongPolls()
        application: Any = LongPollingApplication(StreamingApplication(self._gateway, self.hub), self.polls)
        config = configuration(application, trusted_proxies)
        config.log_level, config.timeout_graceful_shutdown = "warning", 2
        listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.url = f"{self.origin}/api/v1"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()
        wait_until(lambda: self._server.started, "the server has started", PATIENCE_SECONDS)

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
        """Stop, and wait for running views. Safe to call twice."""
        for subscriber in list(self.hub._all):
            subscriber.end()
        self.polls.close()
        self._server.should_exit = True
        self._thread.join()
        self._gateway.shutdown()
        self.hub._threads.shutdown()
        self.polls._thread.shutdown()


def _headers(token: str, **more: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"Authorization": f"Bearer {token}", **named} if token else named
