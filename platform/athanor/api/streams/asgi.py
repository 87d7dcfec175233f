"""The event loop's part of a stream: it continues the response that a view began in its thread."""

import asyncio
import logging
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from athanor.api.streams.frames import HEARTBEAT
from athanor.api.streams.hub import Hub
from athanor.api.streams.subscription import (
    AT_CAPACITY,
    LONG_POLLED,
    LONG_POLLING,
    STREAMING,
    USERS_AT_LIMIT,
    Subscription,
)

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEARTBEAT_SECONDS = 15.0
SEND_SECONDS = 60.0  # after which a client that reads nothing is disconnected
MAX_SECONDS = 3600.0  # then the client reconnects, perhaps to another process


class StreamingApplication:
    """Passes requests to `application`, and continues the responses for which a view opened a subscription."""

    def __init__(self, application: Application, hub: Hub) -> None:
        self._application = application
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection of the ASGI server."""
        if scope["type"] == "lifespan":
            call_on_stop(self._hub.close)
        if scope["type"] != "http" or not scope["path"].endswith("/events"):
            await self._application(scope, receive, send)
            return
        if self._hub.is_full:
            scope[AT_CAPACITY] = True
        scope[USERS_AT_LIMIT] = self._hub.users_at_limit()
        await self._application(scope, receive, _hold_open(scope, send))
        if STREAMING in scope:
            await self._follow(scope[STREAMING], receive, send)
        elif LONG_POLLING in scope and await self._wait(scope.pop(LONG_POLLING), receive):
            await self._application({**scope, LONG_POLLED: True}, receive, send)

    async def _follow(self, subscription: Subscription, receive: Receive, send: Send) -> None:
        subscriber = self._hub.add(subscription)
        watcher = asyncio.create_task(end_on_disconnect(subscriber.end, receive))
        until = time.monotonic() + MAX_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads returns
        try:
            while not subscriber.ended and time.monotonic() < until:
                if subscriber.gap:
                    piece = await self._hub.catch_up(subscriber)
                else:
                    piece = subscriber.take() if await subscriber.wait(HEARTBEAT_SECONDS) else HEARTBEAT
                if piece:
                    await send_in_time(send, piece, more=True)
            await send_in_time(send, b"", more=False)
        except TimeoutError:
            # The client would not read the end of the response either: the server closes the connection.
            log.info("disconnected a client that read nothing for %.0f s", SEND_SECONDS)
        finally:
            watcher.cancel()
            self._hub.remove(subscriber)

    async def _wait(self, subscription: Subscription, receive: Receive) -> bool:
        """Wait until there is an event after the position, or the time is over. Return False if the client has left."""
        subscriber = self._hub.add(subscription)
        gone = asyncio.create_task(end_on_disconnect(subscriber.end, receive))
        until = time.monotonic() + subscription.wait_seconds
        try:
            while not subscriber.ended and (left := until - time.monotonic()) > 0:
                if subscriber.gap:
                    if await self._hub.catch_up(subscriber):
                        break
                elif await subscriber.wait(left) and subscriber.has_events():
                    break
            return not gone.done()
        finally:
            gone.cancel()
            self._hub.remove(subscriber)


def call_on_stop(close: Callable[[], None]) -> None:
    """Call `close` in the event loop on a signal to stop: the server waits for open responses before it exits."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def handle(signum: int, frame: Any, before: Any = before) -> None:
            loop.call_soon_threadsafe(close)
            if callable(before):
                before(signum, frame)

        signal.signal(number, handle)


async def send_in_time(send: Send, piece: bytes, *, more: bool) -> None:
    """Send a piece of a body. Raises TimeoutError if the client has read nothing for SEND_SECONDS."""
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _hold_open(scope: Scope, send: Send) -> Send:
    """Return a `send` for the view's response: without the end of a stream, and without an empty long poll."""

    async def pass_on(message: Message) -> None:
        if LONG_POLLING in scope:
            return
        if STREAMING in scope and message["type"] == "http.response.body" and not message.get("more_body"):
            if not message.get("body"):
                return
            message = {**message, "more_body": True}
        await send(message)

    return pass_on


async def end_on_disconnect(end: Callable[[], None], receive: Receive) -> None:
    """Call `end` when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    end()
