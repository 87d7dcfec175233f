"""The audit trail: what writes it, who may read it, and detection of changes."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, ProgrammingError, connection, connections, transaction

from athanor.accounts import audit, members
from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Role
from athanor.artifacts.models import Artifact
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.answers import refused
from tests.control_plane.roles import as_owner

pytestmark = pytest.mark.django_db


def actions() -> list[str]:
    return list(AuditEvent.objects.order_by("seq").values_list("action", flat=True))


def record(number: int) -> AuditEvent:
    return audit.record_alone(
        "test.act", actor="ada", target=("thing", str(number)), after={"number": number, "ü": "é"}
    )


@pytest.fixture
def tampering() -> Callable[..., None]:
    """Act with the rights of the tables' owner, with triggers disabled."""

    def act(sql: str, *values: Any) -> None:
        with as_owner(), connection.cursor() as cursor:
            for table in ("accounts_auditevent", "accounts_audithead"):
                cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            cursor.execute(sql, values)
            for table in ("accounts_auditevent", "accounts_audithead"):
                cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")

    return act


def test_a_whole_chain_verifies() -> None:
    for number in range(5):
        record(number)
    assert list(audit.verify()) == []
    call_command("verify_audit")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE accounts_auditevent SET actor = 'eve' WHERE seq = 3", "record 3 was changed"),
        ("UPDATE accounts_auditevent SET after = '{\"number\": 7}' WHERE seq = 3", "record 3 was changed"),
        ("DELETE FROM accounts_auditevent WHERE seq = 3", "records 3 to 3 were removed"),
        ("DELETE FROM accounts_auditevent WHERE seq = 5", "record 5 was the last one written"),
        (
            "DELETE FROM accounts_auditevent WHERE seq > 3; UPDATE accounts_audithead SET (seq, digest) ="
            " (SELECT seq, digest FROM accounts_auditevent WHERE seq = 3)",
            "the head of the chain (record 3) was not written by this platform",
        ),
        ("UPDATE accounts_audithead SET mac = ''", "the head of the chain (record 5) was not written"),
        ("DELETE FROM accounts_audithead", "the head of the chain is gone"),
        (
            "INSERT INTO accounts_auditevent SELECT seq + 1, time, action, 'eve', actor_id, token_id, team_id,"
            " target_type, target_id, address, request_id, before, after, digest, digest FROM accounts_auditevent"
            " WHERE seq = 5",
            "records up to 6 were inserted",
        ),
    ],
)
def test_tampering_is_found(tampering: Callable[..., None], sql: str, said: str) -> None:
    for number in range(5):
        record(number)
    tampering(sql)
    found = list(audit.verify())
    assert any(said in problem for problem in found), found
    with pytest.raises(CommandError, match="broken"):
        call_command("verify_audit")


def test_an_inserted_record_breaks_the_chain_even_when_all_are_renumbered(tampering: Callable[..., None]) -> None:
    for number in range(4):
        record(number)
    tampering("UPDATE accounts_auditevent SET seq = seq + 100 WHERE seq > 2")
    tampering("UPDATE accounts_auditevent SET seq = seq - 99 WHERE seq > 100")
    tampering(
        "INSERT INTO accounts_auditevent SELECT 3, time, action, 'eve', actor_id, token_id, team_id, target_type,"
        " target_id, address, request_id, before, after, digest, digest FROM accounts_auditevent WHERE seq = 2"
    )
    tampering("UPDATE accounts_audithead SET seq = 5")
    assert any("record 3 was changed, or was not written" in problem for problem in audit.verify())


@pytest.mark.parametrize(
    ("sql", "refused"),
    [
        ("UPDATE accounts_auditevent SET actor = 'eve'", "permission denied"),
        ("DELETE FROM accounts_auditevent", "permission denied"),
        ("TRUNCATE accounts_auditevent", "permission denied"),
        ("DELETE FROM accounts_audithead", "permission denied"),
        ("TRUNCATE accounts_audithead", "permission denied"),
        ("UPDATE accounts_audithead SET seq = 1", "cannot go from record 3 back to 1"),
        ("ALTER TABLE accounts_auditevent DISABLE TRIGGER USER", "must be owner"),
        ("ALTER TABLE accounts_audithead DISABLE TRIGGER USER", "must be owner"),
        ("ALTER TABLE accounts_auditevent OWNER TO CURRENT_USER", "must be owner"),
        ("DROP TABLE accounts_auditevent", "must be owner"),
        ("CREATE OR REPLACE FUNCTION athanor_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS"
         " $$ BEGIN RETURN OLD; END $$", "permission denied"),
        ("CREATE TABLE public.mine (id int)", "permission denied"),
        ("SET session_replication_role = replica", "permission denied"),
    ],
)  # fmt: skip
def test_the_role_of_web_and_workers_cannot_change_the_past(sql: str, refused: str) -> None:
    for number in range(3):
        record(number)
    with pytest.raises(DatabaseError, match=refused), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)
    assert list(audit.verify()) == []


@pytest.mark.parametrize("sql", ["UPDATE accounts_auditevent SET actor = 'eve'", "DELETE FROM accounts_auditevent"])
def test_a_trigger_refuses_the_owner_too(sql: str) -> None:
    record(1)
    with pytest.raises(ProgrammingError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute(sql)


def test_an_emptied_trail_is_reported_when_there_are_users(tampering: Callable[..., None], user: User) -> None:
    record(1)
    tampering("TRUNCATE accounts_auditevent, accounts_audithead")
    assert any("the trail was emptied" in problem for problem in audit.verify())


def test_a_change_that_is_rolled_back_leaves_no_record_and_no_gap() -> None:
    record(1)
    with pytest.raises(RuntimeError), transaction.atomic():
        audit.record("test.act", actor="ada", target=("thing", "2"))
        raise RuntimeError
    record(3)
    assert list(AuditEvent.objects.order_by("seq").values_list("seq", "target_id")) == [(1, "1"), (2, "3")]
    assert list(audit.verify()) == []


@pytest.mark.django_db(transaction=True)
def test_many_writers_at_once_make_one_chain() -> None:
    """Writers are concurrent from the first record on, which also creates the head."""

    def write(number: int) -> None:
        try:
            for _ in range(5):
                record(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert list(AuditEvent.objects.order_by("seq").values_list("seq", flat=True)) == list(range(1, 41))
    assert list(audit.verify()) == []


def test_a_job_from_submit_to_cancel_is_on_record(api: Any, spec: dict[str, Any], pool: Any, user: User) -> None:
    job = api.send("POST", "jobs", spec, x_request_id="req-of-submit").json()
    for act in ("pause", "resume", "cancel", "cancel"):
        api.send("POST", f"jobs/{job['id']}:{act}")
    events = list(AuditEvent.objects.filter(target_id=job["id"]).order_by("seq"))
    assert [event.action for event in events] == ["job.submit", "job.pause", "job.resume", "job.cancel"]
    first, last = events[0], events[-1]
    assert (first.actor, first.actor_id, first.request_id) == ("ada", user.id, "req-of-submit")
    assert first.address == "127.0.0.1"
    assert first.token_id.startswith("tok_")
    assert last.before == {"desired": "run", "status": "queued"}
    assert last.after == {"desired": "stop"}


def test_signing_in_and_out_and_being_refused_is_on_record(client: Any, user: User) -> None:
    user.set_password("correct horse battery")
    user.save()
    AuditEvent.objects.count()
    for password in ("wrong", "correct horse battery"):
        body = {"username": "ada", "password": password}
        client.post("/api/v1/session", body, content_type="application/json")
    client.delete("/api/v1/session")
    assert actions() == ["session.refuse", "session.begin", "session.end"]
    trail = json.dumps(list(AuditEvent.objects.values("actor", "target_id", "before", "after")))
    assert "horse" not in trail


def test_a_download_is_on_record(api: Any, submit: Callable[..., Job]) -> None:
    attempt = drive.start(submit())
    drive.register_model(attempt)
    artifact = Artifact.objects.get()
    assert api.send("POST", f"artifacts/{artifact.id}:download").status_code == 200
    assert AuditEvent.objects.get(action="artifact.download").target_id == artifact.id
    assert b"".join(api.get(f"/api/v1/artifacts/{artifact.id}/archive").streaming_content)
    assert AuditEvent.objects.filter(action="artifact.download").count() == 2


def test_what_is_changed_in_djangos_admin_is_on_record(client: Any, user: User, team: Team) -> None:
    admin = User.objects.create_superuser("root")
    client.force_login(admin)
    members.add_member(team, "root", Role.ADMIN, admin)
    row = team.memberships.get(user=user)
    assert client.post(f"/admin/accounts/membership/{row.pk}/change/", {"role": "viewer"}).status_code == 302
    changed = AuditEvent.objects.get(action="admin.change")
    assert (changed.actor, changed.target_type, changed.target_id) == ("root", "membership", str(row.pk))
    assert "Role" in json.dumps(changed.after)
    assert client.post(f"/admin/accounts/membership/{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert AuditEvent.objects.get(action="admin.delete").target_id == str(row.pk)
    assert list(audit.verify()) == []


def test_who_may_read_it(api_of: Callable, make_user: Callable, team: Team, other_team: Team, client: Any) -> None:
    api_of(make_user("bo", other_team), other_team)  # issues a token: a record of team blue
    member = api_of(make_user("mia", team), team)
    refused(member.send("GET", "audit"), "role_missing", "role admin")
    head = api_of(make_user("hal", team, "admin"), team)
    seen = head.send("GET", "audit").json()["items"]
    assert {item["team_id"] for item in seen} == {team.id}
    auditor = make_user("audrey", team, "viewer")
    User.objects.filter(pk=auditor.pk).update(platform_role="auditor")
    refused(api_of(auditor, team).send("GET", "audit"), "role_missing", "scope admin or platform:audit")
    client.force_login(auditor)
    everything = client.get("/api/v1/audit").json()["items"]
    assert {item["team_id"] for item in everything} >= {team.id, other_team.id, ""}


def test_pages_filters_and_the_export(client: Any, user: User, monkeypatch: Any) -> None:
    User.objects.filter(pk=user.pk).update(platform_role="platform_admin")
    client.force_login(user)
    for number in range(7):
        record(number)
    first = client.get("/api/v1/audit?action=test&limit=5").json()
    rest = client.get(f"/api/v1/audit?action=test&limit=5&cursor={first['next_cursor']}").json()
    numbers = [item["after"]["number"] for item in first["items"] + rest["items"]]
    assert (numbers, rest["next_cursor"]) == ([6, 5, 4, 3, 2, 1, 0], None)
    assert client.get("/api/v1/audit?action=tes").json()["items"] == []
    assert len(client.get("/api/v1/audit?target=3&actor=ada").json()["items"]) == 1
    assert client.get("/api/v1/audit?after=yesterday").status_code == 422
    monkeypatch.setattr("athanor.accounts.audit_export.CHUNK", 3)
    *lines, end = b"".join(client.get("/api/v1/audit:export?action=test")).splitlines()
    assert [json.loads(line)["after"]["number"] for line in lines] == list(range(7))
    assert json.loads(end)["end"]["complete"] is False


def tampered(lines: list[bytes], how: str) -> list[bytes]:
    end = json.loads(lines[-1])["end"]
    return {
        "nothing": lines,
        "a record": [*lines[:1], lines[1].replace(b'"ada"', b'"eve"'), *lines[2:]],
        "one left out": [*lines[:1], *lines[2:]],
        "two exchanged": [lines[1], lines[0], *lines[2:]],
        "the end cut off": lines[:-1],
        "an end of fewer": [*lines[:1], json.dumps({"end": {**end, "lines": 1, "seq": 1}}).encode() + b"\n"],
    }[how]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nothing", ""),
        ("a record", "was changed"),
        ("one left out", "does not follow"),
        ("two exchanged", "does not follow"),
        ("the end cut off", "no end line"),
        ("an end of fewer", "the end line was changed"),
    ],
)
def test_an_export_is_verified_without_the_database(
    client: Any, user: User, tmp_path: Path, how: str, said: str, capsys: Any
) -> None:
    User.objects.filter(pk=user.pk).update(platform_role="platform_admin")
    client.force_login(user)
    for number in range(4):
        record(number)
    lines = b"".join(client.get("/api/v1/audit:export")).splitlines(keepends=True)
    assert {"seq", "previous", "digest"} <= json.loads(lines[0]).keys()
    file = tmp_path / "trail.jsonl"
    file.write_bytes(b"".join(tampered(lines, how)))
    if not said:
        call_command("verify_audit", file=str(file))
        return
    with pytest.raises(CommandError, match="no intact export"):
        call_command("verify_audit", file=str(file))
    assert said in capsys.readouterr().err
