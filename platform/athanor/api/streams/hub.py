"""One task per process reads new events and progress, and distributes them to all subscribers.

It polls rather than listens: NOTIFY takes a lock that every commit of the database would queue for. It runs only while
there are subscribers. A subscriber that is too slow loses its queue, not its position: it continues from the database.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from django.db import DatabaseError

from athanor.accounts.stream_sessions import StreamSession, authorized_sessions
from athanor.api.streams import reads
from athanor.api.streams.frames import cursor_of, event_frame
from athanor.api.streams.subscription import Subscription
from athanor.telemetry.selectors import LiveProgress

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
PROGRESS_TICKS = 4  # for subscribers of a job; those of a team get every second one
TEAM_PROGRESS_TICKS = 8
TICKET_TICKS = 2  # at the latest; also before anything is distributed
MAX_PER_USER = 20
PAUSE_SECONDS = 2.0  # after a failure, such as a database that restarts
THREADS = 3
MAX_SUBSCRIBERS = 5000
MAX_QUEUE = 64

Result = TypeVar("Result")


@dataclass(frozen=True)
class Update:
    """New events of one tick, or progress, for one team or one job.

    `rows` are (number, data); progress has the number 0. `joined` are all rows as frames of the stream.
    """

    key: str
    rows: tuple[tuple[int, bytes], ...]
    joined: bytes

    @property
    def is_persistent(self) -> bool:
        """Whether it has events, which a client can resume, and not progress."""
        return self.rows[0][0] > 0


@dataclass(eq=False)
class Subscriber:
    """An open stream or long poll, its position, and its queue of updates."""

    subscription: Subscription
    positions: dict[str, int]
    job_after: int
    queue: deque[Update] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    gap: bool = True  # something may be in the database that is not in the queue
    ended: bool = False

    @property
    def keys(self) -> list[str]:
        """Ids of the job, or of the teams, whose updates it receives."""
        return [self.subscription.job_id] if self.subscription.job_id else list(self.positions)

    def put(self, update: Update) -> None:
        """Queue an update. A full queue is dropped: the events are then read from the database."""
        if len(self.queue) >= MAX_QUEUE:
            self.queue.clear()
            self.gap = True
        else:
            self.queue.append(update)
        self.changed.set()

    def end(self) -> None:
        """End the stream or long poll."""
        self.ended = True
        self.changed.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for an update or the end. Return False when the time is over."""
        if not self.queue and not self.ended and not self.gap:
            self.changed.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self.changed.wait()
            except TimeoutError:
                return False
        return True

    def has_events(self) -> bool:
        """Return whether an event is queued that was not sent yet. Updates before it are dropped."""
        while self.queue and not (
            self.queue[0].is_persistent and self.queue[0].rows[-1][0] > self._seen(self.queue[0])
        ):
            self.queue.popleft()
        return bool(self.queue)

    def take(self) -> bytes:
        """Return everything that is queued and was not sent yet, as one piece, and empty the queue."""
        pieces = []
        while self.queue:
            update = self.queue.popleft()
            pieces.append(self._unseen(update))
        return b"".join(pieces)

    def _unseen(self, update: Update) -> bytes:
        if not update.is_persistent:
            return update.joined
        several = not self.subscription.job_id and len(self.positions) > 1
        seen = self._seen(update)
        if update.rows[0][0] > seen and not several:
            self._advance(update.key, update.rows[-1][0])
            return update.joined
        pieces = []
        for seq, data in update.rows:
            if seq > seen:
                self._advance(update.key, seq)
                pieces.append(event_frame(cursor_of(self.positions) if several else str(seq), data))
        return b"".join(pieces)

    def _seen(self, update: Update) -> int:
        return self.job_after if self.subscription.job_id else self.positions[update.key]

    def _advance(self, key: str, seq: int) -> None:
        if self.subscription.job_id:
            self.job_after = seq
        else:
            self.positions[key] = seq


class Hub:
    """The subscribers of one process, and the task that reads updates for them. Use it on one event loop."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[Subscriber]] = {}  # by team, and by job
        self._heads: dict[str, int] = {}
        self._teams: dict[str, int] = {}  # number of subscribers that need the team's feed
        self._all: set[Subscriber] = set()  # those without a team, and so without a key, too
        self._users: Counter[str] = Counter()  # number of subscribers of each user
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hub")
        self._task: asyncio.Task[None] | None = None
        self._progress = reads.ProgressWatch({})
        self._is_closed = False

    @property
    def count(self) -> int:
        """Number of subscribers."""
        return len(self._all)

    @property
    def is_full(self) -> bool:
        """Whether the process has its maximum of subscribers."""
        return self.count >= MAX_SUBSCRIBERS

    def users_at_limit(self) -> frozenset[str]:
        """Return the ids of users with MAX_PER_USER subscribers."""
        return frozenset(user_id for user_id, count in self._users.items() if count >= MAX_PER_USER)

    def add(self, subscription: Subscription) -> Subscriber:
        """Add a subscriber. It is ended already if the hub is closed, or its user has too many."""
        subscriber = Subscriber(
            subscription, dict(subscription.positions), subscription.job_after, ended=self._is_closed
        )
        user_id = subscription.session.user_id
        if self._users[user_id] >= MAX_PER_USER:
            subscriber.end()  # several at the same moment passed the view's own check
        self._users[user_id] += 1
        self._all.add(subscriber)
        for key in subscriber.keys:
            self._subscribers.setdefault(key, set()).add(subscriber)
        for team_id, head in subscription.heads.items():
            self._teams[team_id] = self._teams.get(team_id, 0) + 1
            self._heads.setdefault(team_id, head)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return subscriber

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber, also from the feeds that only it needed."""
        self._all.discard(subscriber)
        user_id = subscriber.subscription.session.user_id
        self._users[user_id] -= 1
        if not self._users[user_id]:
            del self._users[user_id]
        for key in subscriber.keys:
            others = self._subscribers[key]
            others.discard(subscriber)
            if not others:
                del self._subscribers[key]
        for team_id in subscriber.subscription.heads:
            self._teams[team_id] -= 1
            if not self._teams[team_id]:
                del self._teams[team_id], self._heads[team_id]

    async def catch_up(self, subscriber: Subscriber) -> bytes:
        """Return a page of what the subscriber was not sent. `gap` stays set while there is more."""
        subscriber.gap = False
        subscriber.queue.clear()
        try:
            subscription, positions = subscriber.subscription, dict(subscriber.positions)
            page = await self._read(
                set(subscription.heads), reads.read_page, subscription, positions, subscriber.job_after
            )
            if not await self._read((), authorized_sessions, {subscription.session}):
                subscriber.end()
                return b""
        except DatabaseError:
            log.warning("the database is unavailable, a subscriber waits for it", exc_info=True)
            subscriber.gap = True
            await asyncio.sleep(PAUSE_SECONDS)
            return b""
        subscriber.positions, subscriber.job_after = page.positions, page.job_after
        subscriber.gap = subscriber.gap or page.more
        return page.frames

    def close(self) -> None:
        """End every stream, also one that is about to begin, so that the server can stop.

        Clients reconnect with their Last-Event-ID.
        """
        self._is_closed = True
        for subscriber in list(self._all):
            subscriber.end()

    async def _read(self, teams: Collection[str], read: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, reads.in_thread, teams, read, *arguments)

    async def _run(self) -> None:
        tick = 0
        while self._all:
            pause = TICK_SECONDS
            try:
                if await self._tick(tick):
                    pause = 0.0
            except Exception:
                log.exception("no updates for %d subscribers; next try in %.0f s", self.count, PAUSE_SECONDS)
                pause = PAUSE_SECONDS
            tick += 1
            await asyncio.sleep(pause)

    async def _tick(self, tick: int) -> bool:
        """Distribute what is new. Return True if there is more to read immediately."""
        new = await self._read(set(self._heads), reads.read_new_events, dict(self._heads))
        progress: list[tuple[LiveProgress, bytes]] = []
        if tick % PROGRESS_TICKS == 0:
            progress = await self._changed_progress(with_teams=tick % TEAM_PROGRESS_TICKS == 0)
        # After the reads and before anything is distributed: what was committed after a removal, and so read after it,
        # finds the right already gone.
        if new or progress or tick % TICKET_TICKS == 0:
            await self._check_sessions()
        self._distribute(new)
        self._distribute_progress(progress)
        return len(new) == reads.PAGE

    def _distribute(self, new: list[reads.NewEvent]) -> None:
        rows: dict[str, list[tuple[int, bytes]]] = {}
        for event in new:
            if event.team_id in self._heads:
                self._heads[event.team_id] = max(self._heads[event.team_id], event.team_seq)
            for key, seq in ((event.team_id, event.team_seq), (event.job_id, event.job_seq)):
                if key in self._subscribers:
                    rows.setdefault(key, []).append((seq, event.data))
        for key, items in rows.items():
            joined = b"".join(event_frame(str(seq), data) for seq, data in items)
            self._put(Update(key, tuple(items), joined))

    async def _changed_progress(self, *, with_teams: bool) -> list[tuple[LiveProgress, bytes]]:
        teams = [key for key in self._subscribers if key in self._teams] if with_teams else []
        jobs = [key for key in self._subscribers if key not in self._teams]
        if not teams and not jobs:
            return []
        return await self._read(set(self._heads), self._progress.changes, jobs, teams)

    def _distribute_progress(self, progress: list[tuple[LiveProgress, bytes]]) -> None:
        frames: dict[str, list[bytes]] = {}
        for live, frame in progress:
            for key in (live.job_id, live.team_id):
                if key in self._subscribers:
                    frames.setdefault(key, []).append(frame)
        for key, items in frames.items():
            self._put(Update(key, ((0, b""),), b"".join(items)))

    def _put(self, update: Update) -> None:
        for subscriber in self._subscribers.get(update.key, ()):
            if not subscriber.ended:
                subscriber.put(update)

    async def _check_sessions(self) -> None:
        """End the streams of revoked tokens, lost memberships and ended sessions."""
        subscribers = set(self._all)
        sessions: set[StreamSession] = {subscriber.subscription.session for subscriber in subscribers}
        good = await self._read((), authorized_sessions, sessions)
        for subscriber in subscribers:
            if subscriber.subscription.session not in good:
                subscriber.end()
