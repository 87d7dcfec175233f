"""The loop's side of a stream: goes on where the view, in its thread, has stopped."""

import asyncio
import logging
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from athanor.api.streams.following import CROWDED, FOLLOWING, FULL, WAITED, WAITING, Following
from athanor.api.streams.frames import HEARTBEAT
from athanor.api.streams.hub import Follower, Hub

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEARTBEAT_SECONDS = 15.0
SEND_SECONDS = 60.0  # after which a client that reads nothing is given up
LONGEST_SECONDS = 3600.0  # then the client comes back, perhaps to another process


class StreamingApplication:
    """Passes everything on to `application`; answers that are to go on, it goes on with."""

    def __init__(self, application: Application, hub: Hub) -> None:
        self._application = application
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._end_streams_on_signals()
        if scope["type"] != "http" or not scope["path"].endswith("/events"):
            await self._application(scope, receive, send)
            return
        if self._hub.is_full:
            scope[FULL] = True
        scope[CROWDED] = self._hub.crowded_users()
        await self._application(scope, receive, _holding(scope, send))
        if FOLLOWING in scope:
            await self._follow(scope[FOLLOWING], receive, send)
        elif WAITING in scope and await self._wait(scope.pop(WAITING), receive):
            await self._application({**scope, WAITED: True}, receive, send)

    async def _follow(self, following: Following, receive: Receive, send: Send) -> None:
        follower = self._hub.add(following)
        watcher = asyncio.create_task(_end_with_client(follower, receive))
        until = time.monotonic() + LONGEST_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads returns
        try:
            while not follower.ended and time.monotonic() < until:
                if follower.gap:
                    piece = await self._hub.catch_up(follower)
                else:
                    piece = follower.take() if await follower.stirs(HEARTBEAT_SECONDS) else HEARTBEAT
                if piece:
                    await _in_time(send, piece, more=True)
            await _in_time(send, b"", more=False)
        except TimeoutError:
            # It would not read an end either: the server closes what is left open.
            log.info("a client that read nothing for %.0f s was given up", SEND_SECONDS)
        finally:
            watcher.cancel()
            self._hub.remove(follower)

    async def _wait(self, following: Following, receive: Receive) -> bool:
        """Until there is something behind the position, or the time is over. False: the client has gone."""
        follower = self._hub.add(following)
        gone = asyncio.create_task(_end_with_client(follower, receive))
        until = time.monotonic() + following.wait_seconds
        try:
            while not follower.ended and (left := until - time.monotonic()) > 0:
                if follower.gap:
                    if await self._hub.catch_up(follower):
                        break
                elif await follower.stirs(left) and follower.has_events():
                    break
            return not gone.done()
        finally:
            gone.cancel()
            self._hub.remove(follower)

    def _end_streams_on_signals(self) -> None:
        """A server waits for open answers before it stops; these would never end by themselves."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)

            def handle(signum: int, frame: Any, before: Any = before) -> None:
                loop.call_soon_threadsafe(self._hub.close)
                if callable(before):
                    before(signum, frame)

            signal.signal(number, handle)


async def _in_time(send: Send, piece: bytes, *, more: bool) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _holding(scope: Scope, send: Send) -> Send:
    """Passes the view's answer on, without the end of one that goes on, and without one that was only a question."""

    async def passing(message: Message) -> None:
        if WAITING in scope:
            return
        if FOLLOWING in scope and message["type"] == "http.response.body" and not message.get("more_body"):
            if not message.get("body"):
                return
            message = {**message, "more_body": True}
        await send(message)

    return passing


async def _end_with_client(follower: Follower, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    follower.end()
