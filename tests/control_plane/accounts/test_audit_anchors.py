"""Anchors of the audit trail: tampering that the owner of the database without the master key cannot hide."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection

from athanor.accounts import audit
from athanor.accounts.models import AuditEvent, AuditHead
from athanor.artifacts import storage
from athanor.compliance import audit_anchors
from athanor.config.env import EnvironmentProblem, read
from athanor.core.encryption import new_wrapping_keyset
from athanor.core.errors import AthanorError
from tests.control_plane.roles import as_owner

pytestmark = pytest.mark.django_db


def record(count: int) -> None:
    for number in range(count):
        audit.record_alone("test.act", actor="ada", target=("thing", str(number)))


def execute_as_owner(sql: str) -> None:
    with as_owner(), connection.cursor() as cursor:
        cursor.execute(sql)


def put_back(rows: list[AuditEvent], head: AuditHead) -> None:
    """Replace the trail by an older copy, as the owner of the tables can."""
    execute_as_owner("TRUNCATE accounts_auditevent, accounts_audithead")
    AuditEvent.objects.bulk_create(rows)
    head.save(force_insert=True)


@pytest.fixture
def anchor_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def configure(places: str) -> None:
        changed = settings.ATHANOR.model_copy(update={"audit_anchors": places})
        monkeypatch.setattr(settings, "ATHANOR", changed)

    return configure


@pytest.fixture(params=["file", "store"])
def place(request: Any, tmp_path: Path, bucket: str, anchor_at: Callable[[str], None]) -> str:
    chosen = {"file": f"file:{tmp_path / 'anchors'}", "store": f"s3://{bucket}/{tmp_path.name}"}[request.param]
    anchor_at(chosen)
    return chosen


def problems() -> list[str]:
    found = audit_anchors.read()
    return [*found.problems, *audit.verify(found.anchors)]


def test_an_anchored_trail_verifies_and_a_head_is_anchored_once(place: str, capsys: Any) -> None:
    record(3)
    audit_anchors.write()
    audit_anchors.write()
    record(2)
    audit_anchors.write()
    assert [anchor.seq for anchor in audit_anchors.read().anchors] == [3, 5]
    call_command("verify_audit", require_anchors=True)
    assert "2 anchors agree, the newest with record 5" in capsys.readouterr().out


@pytest.mark.parametrize("recreated", [False, True])
def test_an_emptied_trail_is_reported(place: str, recreated: bool) -> None:
    record(5)
    audit_anchors.write()
    execute_as_owner("TRUNCATE accounts_auditevent, accounts_audithead")
    if recreated:
        record(7)
    assert any("5" in said and "anchored" in said for said in problems())
    with pytest.raises(AthanorError, match="differs from its anchors"):
        audit_anchors.write()


def test_an_older_copy_of_rows_and_head_is_reported(place: str) -> None:
    record(3)
    rows, head = list(AuditEvent.objects.all()), AuditHead.objects.get()
    record(2)
    audit_anchors.write()
    put_back(rows, head)
    assert list(audit.verify()) == [], "without its anchors an older copy is in order"
    assert any("record 5 is missing: it was anchored at" in said for said in problems())
    record(4)
    assert any("record 5 is not the one that was anchored" in said for said in problems())
    with pytest.raises(AthanorError, match="record 5 is not the one"):
        audit_anchors.write()


def test_a_forged_anchor_is_reported_and_so_is_one_of_another_installation(tmp_path: Path, anchor_at: Any) -> None:
    file = tmp_path / "anchors"
    anchor_at(f"file:{file}")
    record(2)
    audit_anchors.write()
    line = json.loads(file.read_text())
    with file.open("a") as handle:
        handle.write(json.dumps({**line, "seq": 1}) + "\n")
        handle.write(json.dumps({**line, "key": new_wrapping_keyset().encode().hex(), "seq": 1}) + "\n")
        handle.write("no anchor\n")
    said = " ".join(problems())
    assert "was changed" in said
    assert "was not written by this platform" in said
    assert "line 4: no anchor" in said


def test_without_an_anchor_the_command_says_what_it_cannot_know(capsys: Any) -> None:
    record(1)
    call_command("verify_audit")
    assert "no anchor: this check cannot know" in capsys.readouterr().out
    with pytest.raises(CommandError, match="no anchor"):
        call_command("verify_audit", require_anchors=True)


def test_an_anchor_goes_to_syslog_and_is_read_from_its_file(tmp_path: Path, anchor_at: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        anchor_at(f"syslog://127.0.0.1:{receiver.getsockname()[1]}")
        record(4)
        audit_anchors.write()
        message = receiver.recv(65536).decode()
    assert "audit-anchor" in message
    exported = tmp_path / "syslog"
    exported.write_text(message + "\n")
    call_command("verify_audit", anchors=[str(exported)], require_anchors=True)
    execute_as_owner("TRUNCATE accounts_auditevent, accounts_audithead")
    record(1)
    with pytest.raises(CommandError, match="broken"):
        call_command("verify_audit", anchors=[str(exported)])


def test_a_place_that_fails_is_named_and_the_others_are_written(tmp_path: Path, anchor_at: Any) -> None:
    good = tmp_path / "anchors"
    anchor_at(f"file:{tmp_path / 'missing' / 'anchors'},file:{good}")
    record(1)
    with pytest.raises(AthanorError, match="missing/anchors"):
        audit_anchors.write()
    assert json.loads(good.read_text())["seq"] == 1


def test_the_stores_default_place_is_its_own_prefix(bucket: str, anchor_at: Any) -> None:
    anchor_at("store")
    record(1)
    audit_anchors.write()
    head = AuditHead.objects.get()
    assert storage.size_of(f"audit-anchors/{head.seq:016d}-{head.digest}.json")


@pytest.mark.parametrize("value", ["ftp://host", "file:relative", "syslog://host"])
def test_an_unknown_place_is_refused_at_start(value: str) -> None:
    with pytest.raises(EnvironmentProblem, match="ATHANOR_AUDIT_ANCHORS"):
        read({"ATHANOR_AUDIT_ANCHORS": f"store, {value}"})
