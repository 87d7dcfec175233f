"""The scrub finds stored checkpoints that differ from their manifests, and nothing else makes one damaged."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.artifacts import checkpoint_states, deletions, scrub, storage
from athanor.artifacts import services as artifacts
from athanor.artifacts.models import Checkpoint, Deletion, ScrubBudget
from athanor.core import leases
from athanor.core.errors import Unavailable
from athanor.dispatch import tokens
from athanor.jobs.models import Attempt, Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient, manifest_of, stored_part
from tests.control_plane.artifacts.test_manifests import rewrite
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
Get = Callable[[str], bytes | None]


@pytest.fixture
def attempt(submit: Callable[..., Job], bucket: str) -> Attempt:
    return drive.start(submit(checkpoint={"every_steps": 10, "keep_last": 10}))


def register(attempt: Attempt, step: int, *, parts: int = 2) -> Checkpoint:
    stored = [stored_part(attempt, f"checkpoints/{step}/rank0-{part}") for part in range(parts)]
    return artifacts.register_checkpoint(attempt, manifest_of(attempt, step, stored))


def keys_of(row: Checkpoint) -> list[str]:
    return [part["key"] for part in row.manifest["files"][0]["parts"]]


def states() -> list[tuple[int, str, bool]]:
    """Return step, state and whether it was verified, of all checkpoints."""
    rows = Checkpoint.objects.order_by("step")
    return [(row.step, row.state.value, row.verified_at is not None) for row in rows]


def damage_events() -> list[tuple[str, int, str]]:
    found = JobEvent.objects.filter(type="checkpoint.damaged").order_by("seq")
    return [(each.actor, each.data["step"], each.data["because"]) for each in found]


def flip(key: str) -> None:
    content = storage.get(key)
    assert content is not None
    storage.put(key, content[:-1] + bytes([content[-1] ^ 1]))


@contextmanager
def reads_by(monkeypatch: pytest.MonkeyPatch, get: Callable[[Get, str], bytes | None]) -> Iterator[None]:
    """Replace reads of the store by `get`, which receives the real function and the key."""
    real = storage.get
    with monkeypatch.context() as patch:
        patch.setattr(storage, "get", lambda key: get(real, key))
        yield


@contextmanager
def settings_with(monkeypatch: pytest.MonkeyPatch, **values: Any) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(settings, "ATHANOR", settings.ATHANOR.model_copy(update=values))
        storage.client.cache_clear()
        try:
            yield
        finally:
            storage.client.cache_clear()


def test_what_is_intact_is_read_once_a_week_and_says_when(
    api: Api, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = register(attempt, 10)
    read: list[str] = []

    def get(real: Get, key: str) -> bytes | None:
        read.append(key)
        return real(key)

    shown = f"jobs/{attempt.job_id}/checkpoints"
    assert api.send("GET", shown).json()["items"][0]["verified_at"] is None
    with reads_by(monkeypatch, get):
        assert scrub.scrub() == 1
        assert scrub.scrub() == 0
        assert read == keys_of(row)
        assert api.send("GET", shown).json()["items"][0]["verified_at"]
        Checkpoint.objects.update(verified_at=timezone.now() - scrub.VERIFY_AGAIN - timedelta(minutes=1))
        assert scrub.scrub() == 1
    assert states() == [(10, "intact", True)]


@pytest.mark.parametrize("damage", ["flipped", "shortened", "missing"])
def test_a_difference_makes_a_checkpoint_damaged_as_if_an_agent_had_found_it(attempt: Attempt, damage: str) -> None:
    register(attempt, 10)
    key = keys_of(register(attempt, 20))[1]
    if damage == "missing":
        storage.delete([key])
        because = f"{key} is not in the object store."
    elif damage == "shortened":
        size = storage.size_of(key)
        storage.put(key, b"abc")
        because = f"{key} has 3 bytes in the object store; the manifest says {size}."
    else:
        flip(key)
        because = f"The SHA-256 digest of {key} differs from the manifest's."
    assert scrub.scrub() == 1
    assert states() == [(10, "intact", True), (20, "damaged", False)]
    assert damage_events() == [("storage", 20, because)]
    assert Checkpoint.objects.get(step=20).damage == because
    assert AgentClient(tokens.issue(attempt.id))("GET", "run").json()["resume"]["step"] == 10
    assert scrub.scrub() == 0
    assert len(damage_events()) == 1


def test_one_wrong_read_makes_nothing_damaged(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = keys_of(register(attempt, 10))
    wrong: dict[str, bytes | None] = {first: b"not what is stored", second: None}

    def get(real: Get, key: str) -> bytes | None:
        return wrong.pop(key) if key in wrong else real(key)

    with reads_by(monkeypatch, get):
        assert scrub.scrub() == 1
    assert wrong == {}
    assert states() == [(10, "intact", True)]


@pytest.mark.parametrize("change", [{"s3_endpoint": "http://127.0.0.1:1"}, {"s3_bucket": "no-such-bucket"}])
def test_a_store_that_does_not_answer_makes_nothing_damaged(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    register(attempt, 10)
    register(attempt, 20)
    with settings_with(monkeypatch, **change), pytest.raises(Unavailable):
        scrub.scrub()
    assert states() == [(10, "intact", False), (20, "intact", False)]
    assert scrub.scrub() == 1, "the other one: the first is not tried again while its lease lasts"
    Checkpoint.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert scrub.scrub() == 1
    assert states() == [(10, "intact", True), (20, "intact", True)]


@pytest.mark.parametrize("how", ["retired", "deleted"])
def test_a_checkpoint_that_goes_while_it_is_read_is_not_damaged(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, user: User, how: str
) -> None:
    row = register(attempt, 10)

    def get(real: Get, key: str) -> bytes | None:
        if how == "retired":
            Checkpoint.objects.filter(retired_at=None).update(retired_at=timezone.now())
            artifacts.sweep_retired()
        elif not Deletion.objects.exists():
            Job.objects.filter(pk=row.job_id).update(status="failed")
            deletions.delete(Checkpoint.objects.get(), user, permanently=True)
            deletions.purge_due()
        return real(key)

    with reads_by(monkeypatch, get):
        assert scrub.scrub() == 0
    assert storage.size_of(keys_of(row)[0]) is None
    assert states() == [(10, "intact", False)]
    assert damage_events() == []


def test_what_a_worker_finds_after_another_took_over_is_dropped(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(attempt, 10)
    calls: list[str] = []

    def get(real: Get, key: str) -> bytes | None:
        calls.append(key)
        if len(calls) == 1:  # it stood still for longer than its lease
            Checkpoint.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
            assert scrub.scrub() == 1
            return b"wrong"
        return real(key) if len(calls) < 4 else b"wrong"

    with reads_by(monkeypatch, get):
        assert scrub.scrub() == 0
    assert states() == [(10, "intact", True)]
    assert damage_events() == []


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_the_same_time_share_the_work(
    submit: Callable[..., Job], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = drive.start(submit(checkpoint={"every_steps": 10, "keep_last": 10}))
    rows = [register(attempt, step) for step in (10, 20, 30, 40)]
    flip(keys_of(rows[1])[0])
    both, read, errors = threading.Barrier(2), [], []
    first = threading.local()

    def get(real: Get, key: str) -> bytes | None:
        if not getattr(first, "is_over", False):
            first.is_over = True
            both.wait(timeout=60)  # each has claimed one
        read.append(key)
        return real(key)

    def work() -> None:
        try:
            scrub.scrub()
        except Exception as error:  # noqa: BLE001 - a thread's error must reach the test
            errors.append(error)
        finally:
            connection.close()

    with reads_by(monkeypatch, get):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert states() == [(10, "intact", True), (20, "damaged", False), (30, "intact", True), (40, "intact", True)]
    assert len(damage_events()) == 1
    wrong, after_it = keys_of(rows[1])
    expected = [key for row in rows for key in keys_of(row) if key != after_it] + [wrong]
    assert sorted(read) == sorted(expected), "every part once, and the wrong one twice"


def test_the_budget_limits_what_is_read_and_a_checkpoint_is_continued(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = register(attempt, 10, parts=3)
    newer = register(attempt, 20, parts=3)
    read: list[str] = []

    def get(real: Get, key: str) -> bytes | None:
        read.append(key)
        return real(key)

    # An hour's budget is a part and a half: each part takes most of it.
    size = row.size_bytes / 3 * 1.5 / 2**30
    with settings_with(monkeypatch, scrub_gib_per_hour=size), reads_by(monkeypatch, get):
        for part in range(1, 4):
            assert scrub.scrub() == (part == 3)
            assert scrub.scrub() == 0, "the budget is used up"
            assert read == keys_of(newer)[:part], "the newest one first, and each part once"
            spent = ScrubBudget.objects.get().spent_until - timezone.now()
            assert timedelta(minutes=20) < spent <= timedelta(minutes=40)
            ScrubBudget.objects.update(spent_until=timezone.now())
    assert states() == [(10, "intact", False), (20, "intact", True)]


def test_nothing_is_read_while_it_is_turned_off(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    register(attempt, 10)
    with settings_with(monkeypatch, scrub_gib_per_hour=0):
        assert scrub.due().count() == 0
        assert scrub.scrub() == 0
    assert scrub.due().count() == 1


def test_what_unfinished_jobs_resume_from_comes_first(submit: Callable[..., Job], bucket: str) -> None:
    attempts = [drive.start(submit(name=name)) for name in ("over", "alive")]
    over, alive = ([register(attempt, step) for step in (10, 20)] for attempt in attempts)
    Job.objects.filter(name="over").update(status="failed")
    Checkpoint.objects.filter(pk=over[1].pk).update(verified_at=timezone.now() - timedelta(days=9))
    Checkpoint.objects.filter(pk=alive[1].pk).update(verified_at=timezone.now() - timedelta(days=8))
    claimed = [lease.pk for lease in leases.claim_each(scrub._by_urgency(scrub.due()), seconds=60, limit=9)]
    assert claimed == [alive[1].pk, over[0].pk, alive[0].pk, over[1].pk]


def test_a_manifest_that_is_not_authentic_marks_nothing_and_does_not_stop_the_others(attempt: Attempt) -> None:
    register(attempt, 10)
    changed = register(attempt, 20)
    changed.manifest["files"][0]["parts"].pop()
    rewrite("artifacts_checkpoint", changed.id, changed.manifest)
    assert scrub.scrub() == 1
    assert states() == [(10, "intact", True), (20, "intact", False)]
    assert damage_events() == []


def test_checkpoints_of_a_deleted_team_are_not_read(attempt: Attempt, team: Team) -> None:
    register(attempt, 10)
    Team.objects.update(deleted_at=timezone.now())
    assert scrub.scrub() == 0
    assert states() == [(10, "intact", False)]


def test_a_finding_that_is_revoked_is_verified_again(attempt: Attempt, user: User) -> None:
    row = register(attempt, 10)
    key = keys_of(row)[1]
    content = storage.get(key)
    assert content is not None
    flip(key)
    scrub.scrub()
    row = checkpoint_states.mark_intact(row, "a wrong finding", user)
    assert (row.state, row.verified_parts) == ("intact", 0)
    scrub.scrub()
    assert states() == [(10, "damaged", False)], "the size is right, and the digest is not"
    storage.put(key, content)
    checkpoint_states.mark_intact(row, "restored", user)
    scrub.scrub()
    assert states() == [(10, "intact", True)]
