"""One task a process that looks for news and hands them to all followers.

It polls rather than listens: NOTIFY takes a lock that every commit of the database would queue for. It runs only while
somebody follows. A follower that is slower than the news loses its queue, not its place: it reads on from the database.
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
from athanor.api.streams.following import Following
from athanor.api.streams.frames import cursor_of, event_frame
from athanor.telemetry.selectors import LiveProgress

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
PROGRESS_TICKS = 4  # for followers of a job; those of a team get every other one
TEAM_PROGRESS_TICKS = 8
TICKET_TICKS = 2  # at the latest; besides, before anything is handed out
MOST_OF_ONE_USER = 20
PAUSE_SECONDS = 2.0  # after a failure, such as a database that restarts
THREADS = 3
MOST_FOLLOWERS = 5000
LONGEST_QUEUE = 64

Result = TypeVar("Result")


@dataclass(frozen=True)
class News:
    """Of one tick, for one team or one job; `rows` without an order (`seq` 0) are progress."""

    key: str
    rows: tuple[tuple[int, bytes], ...]
    joined: bytes

    @property
    def lasting(self) -> bool:
        return self.rows[0][0] > 0


@dataclass(eq=False)
class Follower:
    following: Following
    positions: dict[str, int]
    job_after: int
    queue: deque[News] = field(default_factory=deque)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    gap: bool = True  # something may be in the database that is not in the queue
    ended: bool = False

    @property
    def keys(self) -> list[str]:
        return [self.following.job_id] if self.following.job_id else list(self.positions)

    def put(self, news: News) -> None:
        if len(self.queue) >= LONGEST_QUEUE:
            self.queue.clear()
            self.gap = True
        else:
            self.queue.append(news)
        self.stirred.set()

    def end(self) -> None:
        self.ended = True
        self.stirred.set()

    async def stirs(self, seconds: float) -> bool:
        """Wait for news, or the end. False when the time is over."""
        if not self.queue and not self.ended and not self.gap:
            self.stirred.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self.stirred.wait()
            except TimeoutError:
                return False
        return True

    def has_events(self) -> bool:
        """Whether something lasting is queued that was not seen yet; what is not, is dropped."""
        while self.queue and not (self.queue[0].lasting and self.queue[0].rows[-1][0] > self._seen(self.queue[0])):
            self.queue.popleft()
        return bool(self.queue)

    def take(self) -> bytes:
        """All that is queued and was not sent yet, as one piece."""
        pieces = []
        while self.queue:
            news = self.queue.popleft()
            pieces.append(self._unseen(news))
        return b"".join(pieces)

    def _unseen(self, news: News) -> bytes:
        if not news.lasting:
            return news.joined
        several = not self.following.job_id and len(self.positions) > 1
        seen = self._seen(news)
        if news.rows[0][0] > seen and not several:
            self._reach(news.key, news.rows[-1][0])
            return news.joined
        pieces = []
        for seq, data in news.rows:
            if seq > seen:
                self._reach(news.key, seq)
                pieces.append(event_frame(cursor_of(self.positions) if several else str(seq), data))
        return b"".join(pieces)

    def _seen(self, news: News) -> int:
        return self.job_after if self.following.job_id else self.positions[news.key]

    def _reach(self, key: str, seq: int) -> None:
        if self.following.job_id:
            self.job_after = seq
        else:
            self.positions[key] = seq


class Hub:
    def __init__(self) -> None:
        self._followers: dict[str, set[Follower]] = {}  # by team, and by job
        self._heads: dict[str, int] = {}
        self._teams: dict[str, int] = {}  # how many followers need the team's feed
        self._everybody: set[Follower] = set()  # also who has no team, and so no key
        self._users: Counter[str] = Counter()  # how many followers are whose
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hub")
        self._task: asyncio.Task[None] | None = None
        self._progress = reads.ProgressWatch({})
        self._is_closed = False

    @property
    def count(self) -> int:
        return len(self._everybody)

    @property
    def is_full(self) -> bool:
        return self.count >= MOST_FOLLOWERS

    def crowded_users(self) -> frozenset[str]:
        """Users who follow as much as one may."""
        return frozenset(user_id for user_id, count in self._users.items() if count >= MOST_OF_ONE_USER)

    def add(self, following: Following) -> Follower:
        follower = Follower(following, dict(following.positions), following.job_after, ended=self._is_closed)
        user_id = following.session.user_id
        if self._users[user_id] >= MOST_OF_ONE_USER:
            follower.end()  # several at the same moment passed the view's own check
        self._users[user_id] += 1
        self._everybody.add(follower)
        for key in follower.keys:
            self._followers.setdefault(key, set()).add(follower)
        for team_id, head in following.heads.items():
            self._teams[team_id] = self._teams.get(team_id, 0) + 1
            self._heads.setdefault(team_id, head)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return follower

    def remove(self, follower: Follower) -> None:
        self._everybody.discard(follower)
        user_id = follower.following.session.user_id
        self._users[user_id] -= 1
        if not self._users[user_id]:
            del self._users[user_id]
        for key in follower.keys:
            others = self._followers[key]
            others.discard(follower)
            if not others:
                del self._followers[key]
        for team_id in follower.following.heads:
            self._teams[team_id] -= 1
            if not self._teams[team_id]:
                del self._teams[team_id], self._heads[team_id]

    async def catch_up(self, follower: Follower) -> bytes:
        """A page of what the follower has not seen; `gap` stays set while there is more."""
        follower.gap = False
        follower.queue.clear()
        try:
            following, positions = follower.following, dict(follower.positions)
            page = await self._read(set(following.heads), reads.page, following, positions, follower.job_after)
            if not await self._read((), authorized_sessions, {following.session}):
                follower.end()
                return b""
        except DatabaseError:
            log.warning("the database is away, a follower waits for it", exc_info=True)
            follower.gap = True
            await asyncio.sleep(PAUSE_SECONDS)
            return b""
        follower.positions, follower.job_after = page.positions, page.job_after
        follower.gap = follower.gap or page.more
        return page.frames

    def close(self) -> None:
        """End every stream, also one that is about to begin, so that the server can stop; clients come back with their
        Last-Event-ID."""
        self._is_closed = True
        for follower in list(self._everybody):
            follower.end()

    async def _read(self, teams: Collection[str], read: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, reads.in_thread, teams, read, *arguments)

    async def _run(self) -> None:
        tick = 0
        while self._everybody:
            pause = TICK_SECONDS
            try:
                if await self._tick(tick):
                    pause = 0.0
            except Exception:
                log.exception("no news for %d followers; next try in %.0f s", self.count, PAUSE_SECONDS)
                pause = PAUSE_SECONDS
            tick += 1
            await asyncio.sleep(pause)

    async def _tick(self, tick: int) -> bool:
        """True when there is more to read at once."""
        new = await self._read(set(self._heads), reads.news, dict(self._heads))
        progress: list[tuple[LiveProgress, bytes]] = []
        if tick % PROGRESS_TICKS == 0:
            progress = await self._changed_progress(with_teams=tick % TEAM_PROGRESS_TICKS == 0)
        # After the reads and before anything is handed out: what was committed after a removal, and so read after it,
        # finds the right already gone.
        if new or progress or tick % TICKET_TICKS == 0:
            await self._check_tickets()
        self._spread(new)
        self._spread_progress(progress)
        return len(new) == reads.PAGE

    def _spread(self, new: list[reads.New]) -> None:
        rows: dict[str, list[tuple[int, bytes]]] = {}
        for event in new:
            if event.team_id in self._heads:
                self._heads[event.team_id] = max(self._heads[event.team_id], event.team_seq)
            for key, seq in ((event.team_id, event.team_seq), (event.job_id, event.job_seq)):
                if key in self._followers:
                    rows.setdefault(key, []).append((seq, event.data))
        for key, items in rows.items():
            joined = b"".join(event_frame(str(seq), data) for seq, data in items)
            self._hand(News(key, tuple(items), joined))

    async def _changed_progress(self, *, with_teams: bool) -> list[tuple[LiveProgress, bytes]]:
        teams = [key for key in self._followers if key in self._teams] if with_teams else []
        jobs = [key for key in self._followers if key not in self._teams]
        if not teams and not jobs:
            return []
        return await self._read(set(self._heads), self._progress.changes, jobs, teams)

    def _spread_progress(self, progress: list[tuple[LiveProgress, bytes]]) -> None:
        frames: dict[str, list[bytes]] = {}
        for told, frame in progress:
            for key in (told.job_id, told.team_id):
                if key in self._followers:
                    frames.setdefault(key, []).append(frame)
        for key, items in frames.items():
            self._hand(News(key, ((0, b""),), b"".join(items)))

    def _hand(self, news: News) -> None:
        for follower in self._followers.get(news.key, ()):
            if not follower.ended:
                follower.put(news)

    async def _check_tickets(self) -> None:
        """A revoked token, a lost membership or a session that was ended ends its streams."""
        followers = set(self._everybody)
        sessions: set[StreamSession] = {follower.following.session for follower in followers}
        good = await self._read((), authorized_sessions, sessions)
        for follower in followers:
            if follower.following.session not in good:
                follower.end()
