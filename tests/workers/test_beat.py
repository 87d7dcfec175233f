"""Beat keeps the schedule without a file, and rests while the platform is idle."""

from collections.abc import Iterator

import pytest

from athanor.config.celery import app
from workers import beat


class Clock:
    """Seconds that pass only when a test lets them."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(beat, "time", made)
    return made


class World:
    """Whether the platform is idle, how often beat has asked, and what it has sent."""

    def __init__(self) -> None:
        self.idle, self.asked, self.sent = True, 0, 0

    def is_idle(self) -> bool:
        self.asked += 1
        return self.idle


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Celery's own scheduler has one message to send at each tick, and then none."""
    made, has_sent = World(), [False]

    def tick(scheduler: beat.MemoryScheduler) -> float:
        has_sent[0] = not has_sent[0]
        made.sent += has_sent[0]
        return 0.0 if has_sent[0] else 1.5

    monkeypatch.setattr(beat.celery.beat.Scheduler, "tick", tick)
    monkeypatch.setattr(beat, "_ask_idle", made.is_idle)
    return made


def pass_time(scheduler: beat.MemoryScheduler, clock: Clock, seconds: float) -> None:
    """Tick as Celery's beat does: again after as many seconds as a tick returns."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += scheduler.tick()


def test_an_idle_platform_gets_messages_once_a_minute_and_is_asked_every_five_seconds(
    clock: Clock, world: World
) -> None:
    pass_time(beat.MemoryScheduler(app), clock, 600)
    assert 9 <= world.sent <= 11
    assert 105 <= world.asked <= 121


def test_work_that_begins_is_noticed_within_five_seconds(clock: Clock, world: World) -> None:
    scheduler = beat.MemoryScheduler(app)
    pass_time(scheduler, clock, 45)
    world.idle, before = False, world.sent
    pass_time(scheduler, clock, beat.POLL_SECONDS)
    assert world.sent > before
    before = world.sent
    pass_time(scheduler, clock, 60)
    assert world.sent - before >= 38, "every 1.5 s, as Celery's scheduler asks"


def test_its_schedule_is_that_of_the_reconcilers() -> None:
    assert set(beat.MemoryScheduler(app).schedule) == set(beat.SCHEDULE)


def test_it_says_that_it_is_alive_as_often_as_it_must(
    clock: Clock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(beat, "notify", lambda *states: said.append(states))
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    pass_time(beat.MemoryScheduler(app), clock, 100)
    assert said[0] == ("READY=1",)
    assert 9 <= said.count(("WATCHDOG=1",)) <= 11


@pytest.mark.django_db
def test_the_database_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beat._ask_idle()
