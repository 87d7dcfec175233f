"""Master and team keys are replaced while jobs run; an interrupted rotation continues."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from athanor.accounts import audit
from athanor.accounts.models import AuditHead, Team, User
from athanor.artifacts import keys, rotation, team_secrets
from athanor.artifacts.models import DataKey, TeamKey, TeamSecret
from athanor.core import encryption
from athanor.core.encryption import new_wrapping_keyset
from athanor.core.errors import Misconfigured
from athanor.dispatch import tokens
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(submit: Callable[..., Job], team: Team, user: User) -> Callable[[], dict[str, Any]]:
    """Request the keys of a running attempt, as its agent does when it restarts in place."""
    team_secrets.put(team, "hf-token", "hf_abcdef", user)
    for _ in range(3):
        keys.data_key(submit().id, team)
    attempt = drive.start(submit(secrets=["hf-token"]))
    return lambda: AgentClient(tokens.issue(attempt.id))("GET", "keys").json()


@pytest.fixture
def master(settings: Any) -> Callable[..., None]:
    def use(current: str, previous: str = "") -> None:
        update = {"master_key": current, "previous_master_key": previous}
        settings.ATHANOR = settings.ATHANOR.model_copy(update=update)

    return use


def test_the_master_key_is_replaced_while_a_job_runs(running: Callable, master: Callable, settings: Any) -> None:
    before, old, new = running(), settings.ATHANOR.master_key, new_wrapping_keyset()
    sealed = {row.pk: bytes(row.wrapped) for row in DataKey.objects.all()}
    master(new, old)
    assert running() == before, "restarted with both keys, nothing rotated yet"
    audit.record_alone("test.act", actor="ada", target=("thing", "1"))
    call_command("rotate_master_key")
    assert running() == before
    master(new)
    assert running() == before, "the old key is gone"
    assert list(audit.verify()) == []
    assert sealed == {row.pk: bytes(row.wrapped) for row in DataKey.objects.all()}, "data keys are not touched"
    master(old)
    with pytest.raises(Misconfigured):
        keys.data_key(DataKey.objects.values_list("owner", flat=True)[0], Team.objects.get())


def test_a_master_rotation_that_was_broken_off_goes_on(
    running: Callable, master: Callable, settings: Any, other_team: Team, monkeypatch: Any
) -> None:
    keys.data_key("job_other", other_team)
    before, old, new = running(), settings.ATHANOR.master_key, new_wrapping_keyset()
    master(new, old)
    wrap, calls = encryption.wrap_by_master, []

    def breaks(*arguments: Any) -> bytes:
        calls.append(arguments)
        if len(calls) == 2:
            raise ConnectionError("killed")
        return wrap(*arguments)

    monkeypatch.setattr(encryption, "wrap_by_master", breaks)
    with pytest.raises(ConnectionError):
        rotation.rotate_master()
    monkeypatch.undo()
    master(new, old)
    assert running() == before
    assert rotation.rotate_master() == 2, "the other team's key and the audit trail's"
    assert rotation.rotate_master() == 0
    master(new)
    assert running() == before


def test_without_the_previous_key_the_command_says_what_to_do(running: Callable, master: Callable) -> None:
    with pytest.raises(CommandError, match="ATHANOR_PREVIOUS_MASTER_KEY"):
        call_command("rotate_master_key")
    master(new_wrapping_keyset(), new_wrapping_keyset())
    with pytest.raises(CommandError, match="does not open"):
        call_command("rotate_master_key")


def test_a_teams_key_is_replaced_and_the_running_job_sees_nothing_of_it(
    running: Callable, team: Team, monkeypatch: Any
) -> None:
    before, wrap, seen = running(), encryption.wrap, []

    def watched(*arguments: Any) -> bytes:
        seen.append(running() == before)
        return wrap(*arguments)

    monkeypatch.setattr(encryption, "wrap", watched)
    old = [bytes(row.wrapped) for row in (*DataKey.objects.all(), *TeamSecret.objects.all(), *TeamKey.objects.all())]
    call_command("rotate_team_key", team.name)
    assert running() == before
    assert len(seen) >= 7
    assert all(seen), "at every step in between"
    new = [bytes(row.wrapped) for row in (*DataKey.objects.all(), *TeamSecret.objects.all(), *TeamKey.objects.all())]
    assert not set(old) & set(new)
    keyset = keys.locked_team_keyset(team)
    assert encryption.is_single(keyset)
    with pytest.raises(Misconfigured):
        encryption.unwrap(keyset, old[0], DataKey.objects.order_by("pk")[0].owner)


@pytest.mark.parametrize("broken_at", [1, 2, 4])
def test_a_team_rotation_that_was_broken_off_goes_on(
    running: Callable, team: Team, monkeypatch: Any, broken_at: int
) -> None:
    before, wrap, calls = running(), encryption.wrap, []

    def breaks(*arguments: Any) -> bytes:
        calls.append(arguments)
        if len(calls) == broken_at + 1:
            raise ConnectionError("killed")
        return wrap(*arguments)

    monkeypatch.setattr(encryption, "wrap", breaks)
    with pytest.raises(ConnectionError):
        rotation.rotate_team(team)
    monkeypatch.undo()
    half = keys.locked_team_keyset(team)
    assert not encryption.is_single(half)
    assert running() == before
    rotation.rotate_team(team)
    done = keys.locked_team_keyset(team)
    assert encryption.is_single(done)
    assert done in (encryption.only_primary(half), done)
    assert running() == before


def test_a_key_that_is_made_at_the_last_moment_is_taken_along(running: Callable, team: Team, monkeypatch: Any) -> None:
    """A key is wrapped by the old key after rotation has passed its row and before the old key is deleted."""
    old, owner = keys.locked_team_keyset(team), "job_late"
    end = rotation._end

    def late(of: Team) -> int:
        DataKey.objects.create(owner=owner, team=team, wrapped=encryption.wrap(old, "late keyset", owner))
        return end(of)

    monkeypatch.setattr(rotation, "_end", late)
    rotation.rotate_team(team)
    assert keys.data_key(owner, team) == "late keyset"


def test_a_team_without_a_key_and_an_unknown_one(other_team: Team) -> None:
    assert rotation.rotate_team(other_team) == 0
    with pytest.raises(CommandError, match="no team"):
        call_command("rotate_team_key", "nobody")
    assert not AuditHead.objects.exists()
