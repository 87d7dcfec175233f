"""Long polls of agents that wait for their ranks: the event loop holds them, no thread does.

The view registers the node and leaves a `Wait` in the ASGI scope; its thread is then free. One task per process asks
for the replies to all nodes that wait, and sends each its own. Meanwhile the client gets a space every few seconds, so
that both sides notice a broken connection, and the agent can stop.
"""

import asyncio
import logging
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rest_framework.request import Request

from athanor.api.streams.asgi import (
    SEND_SECONDS,
    Application,
    Message,
    Receive,
    Scope,
    Send,
    call_on_stop,
    end_on_disconnect,
    send_in_time,
)
from athanor.api.streams.reads import in_thread
from athanor.dispatch import rendezvous_rounds
from athanor.dispatch.rendezvous_rounds import WaitingNode
from athanor.jobs.models import Attempt
from trainer.contract.node_rendezvous import JoinReply, JoinRequest

log = logging.getLogger(__name__)

PATH = "/api/agent/v1/rendezvous"
WAIT = "athanor.rendezvous_wait"  # in the scope: hold the response
TICK_SECONDS = 0.25
SEEN_SECONDS = 10.0  # between records that the nodes are seen; they must be within three times that
SPACE_SECONDS = 5.0
PAUSE_SECONDS = 2.0  # after a failure, such as a database that restarts
MAX_WAITING = 5000


@dataclass(eq=False)
class Wait:
    """A node whose response is held, and the reply that it would get now."""

    attempt_id: str
    team_id: str
    node: WaitingNode
    seconds: float
    reply: JoinReply
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, reply: JoinReply) -> None:
        """Set the newest reply. It ends the wait if the node's state has changed."""
        self.reply = reply
        if reply.round != self.node.round or reply.state != ("spare" if self.node.is_spare else "gathering"):
            self.ended.set()


def hold(request: Request, attempt: Attempt, asked: JoinRequest, reply: JoinReply) -> None:
    """Let the event loop hold the response to a join until the reply changes.

    Without an event loop (plain WSGI, and tests that call the view) the agent gets the reply as it is, and asks again.
    """
    scope: dict[str, Any] | None = request.META.get("asgi.scope")
    if scope is not None:
        node = WaitingNode(asked.node_index, reply.round, reply.state == "spare")
        scope[WAIT] = Wait(attempt.pk, attempt.job.team_id, node, asked.wait_seconds, reply)


class LongPolls:
    """The nodes that wait in one process, and the task that asks for their replies. Use it on one event loop."""

    def __init__(self) -> None:
        self._waiting: set[Wait] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-polls")
        self._task: asyncio.Task[None] | None = None
        self._seen_at = 0.0
        self._is_closed = False

    def add(self, wait: Wait) -> None:
        """Add a node. Its wait is over if the server stops, or too many nodes wait here."""
        if self._is_closed or len(self._waiting) >= MAX_WAITING:
            wait.ended.set()
        self._waiting.add(wait)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, wait: Wait) -> None:
        """Remove a node."""
        self._waiting.discard(wait)

    def close(self) -> None:
        """End all waits, so that the server can stop. Agents ask again."""
        self._is_closed = True
        for wait in self._waiting:
            wait.ended.set()

    async def _run(self) -> None:
        while self._waiting:
            pause = TICK_SECONDS
            try:
                await self._tick()
            except Exception:
                log.exception("no replies for %d nodes; next try in %.0f s", len(self._waiting), PAUSE_SECONDS)
                pause = PAUSE_SECONDS
            await asyncio.sleep(pause)

    async def _tick(self) -> None:
        waiting: dict[str, list[Wait]] = {}
        for wait in self._waiting:
            if not wait.ended.is_set():
                waiting.setdefault(wait.attempt_id, []).append(wait)
        nodes = {attempt_id: [wait.node for wait in waits] for attempt_id, waits in waiting.items()}
        teams = {waits[0].team_id for waits in waiting.values()}
        loop = asyncio.get_running_loop()
        if loop.time() - self._seen_at >= SEEN_SECONDS:
            await loop.run_in_executor(self._thread, in_thread, teams, rendezvous_rounds.mark_seen, nodes)
            self._seen_at = loop.time()
        replies = await loop.run_in_executor(self._thread, in_thread, teams, rendezvous_rounds.replies_to, nodes)
        for attempt_id, waits in waiting.items():
            for wait in waits:
                reply = replies.get(attempt_id, {}).get(wait.node.node_index)
                if reply is not None:
                    wait.take(reply)


class LongPollingApplication:
    """Passes requests to `application`, and holds the responses to joins that wait."""

    def __init__(self, application: Application, polls: LongPolls) -> None:
        self._application, self._polls = application, polls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection of the ASGI server."""
        if scope["type"] == "lifespan":
            call_on_stop(self._polls.close)
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._application(scope, receive, send)
            return
        await self._application(scope, receive, _without_body(scope, send))
        if WAIT in scope:
            await self._hold(scope[WAIT], receive, send)

    async def _hold(self, wait: Wait, receive: Receive, send: Send) -> None:
        """Send spaces until the wait is over, then the reply."""
        self._polls.add(wait)
        gone = asyncio.create_task(end_on_disconnect(wait.ended.set, receive))
        loop = asyncio.get_running_loop()
        # Nodes that came together do not return together.
        until = loop.time() + wait.seconds * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        try:
            while not wait.ended.is_set() and (left := until - loop.time()) > 0:
                try:
                    async with asyncio.timeout(min(left, SPACE_SECONDS)):
                        await wait.ended.wait()
                except TimeoutError:
                    await send_in_time(send, b" ", more=True)
            if not gone.done():
                await send_in_time(send, wait.reply.model_dump_json().encode(), more=False)
        except TimeoutError:
            log.info("disconnected an agent that read nothing for %.0f s", SEND_SECONDS)
        finally:
            gone.cancel()
            self._polls.remove(wait)


def _without_body(scope: Scope, send: Send) -> Send:
    """Return a `send` for the view's response, which passes the head only if the response is held."""

    async def pass_on(message: Message) -> None:
        if WAIT in scope and message["type"] == "http.response.body":
            return
        if WAIT in scope:
            message = {**message, "headers": [item for item in message["headers"] if item[0] != b"content-length"]}
        await send(message)

    return pass_on
