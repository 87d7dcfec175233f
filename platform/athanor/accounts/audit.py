"""The audit trail: who did what to what, when, from where, with before and after, each record chained to the last.

A record is written in the transaction of the change it describes, so neither exists without the other. Its digest is an
HMAC over its content and the digest before it, under a key that is wrapped by the master key. The head row contains the
newest number and digest and a code over both. What this proves, and against whom:

- The runtime role of the database (web, workers) has no right to change or delete a record: the statement fails.
- Somebody with the rights of the tables' owner but without the master key can neither change, remove nor insert a
  record, nor make a head for a shorter trail: `verify` reports it.
- They can restore an older copy of all rows and of the head, or empty both. Only anchors, copies of the head outside
  the database (compliance/audit_anchors.py), show that; without one `verify` cannot detect it.

Writers are serialised by the head's row lock, which is held to the end of the transaction: record last, after all other
locks.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import QuerySet
from django.utils import timezone
from psycopg.types.json import Jsonb

from athanor.accounts import audit_chain
from athanor.accounts.audit_chain import KEY_OWNER, Anchor
from athanor.accounts.models import AuditEvent, AuditHead, User
from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.core import encryption
from athanor.core.errors import Forbidden, Misconfigured
from athanor.core.logging import bound_id

HEAD = 1
START = ""
# By hand, because every change of the platform waits for these two: the head's row lock is what serialises writers.
NEXT = "UPDATE accounts_audithead SET seq = seq + 1 WHERE id = 1 RETURNING seq, digest, wrapped_key"
FIRST = (
    "INSERT INTO accounts_audithead (id, seq, digest, wrapped_key, mac) VALUES (1, 0, %s, %s, '') "
    "ON CONFLICT DO NOTHING"
)
COLUMNS = tuple(field.column for field in AuditEvent._meta.concrete_fields if field.column is not None)
APPEND = (
    f"WITH appended AS (INSERT INTO accounts_auditevent ({', '.join(COLUMNS)}) "  # noqa: S608 - names of our own columns
    f"VALUES ({', '.join(['%s'] * len(COLUMNS))})) UPDATE accounts_audithead SET digest = %s, mac = %s WHERE id = 1"
)


def record(
    action: str,
    *,
    actor: User | str,
    target: tuple[str, str],
    team_id: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEvent:
    """Append one record. `target` is a kind and an id.

    Address, request and token are those bound to the current work (core/logging.py). Values must be JSON of strings,
    integers, booleans and None, and never a secret.
    """
    assert connection.in_atomic_block, "a record is written in the transaction of the change"
    name, identifier = (actor.username, actor.id) if isinstance(actor, User) else (actor, bound_id("user"))
    event = AuditEvent(
        time=timezone.now(),
        action=action,
        actor=name[:150],
        actor_id=identifier,
        token_id=bound_id("token"),
        team_id=team_id,
        target_type=target[0],
        target_id=target[1][:150],
        address=bound_id("address"),
        request_id=bound_id("request"),
        before=before,
        after=after,
    )
    with connection.cursor() as cursor:
        event.seq, event.previous, key = _next(cursor)
        event.digest = _digest(key, event)
        head = [event.digest, audit_chain.head_mac(key, event.seq, event.digest)]
        cursor.execute(APPEND, [_column(event, name) for name in COLUMNS] + head)
    return event


def record_alone(action: str, **facts: Any) -> AuditEvent:
    """Append a record in a transaction of its own, for actions that change no row, such as a download."""
    with transaction.atomic():
        return record(action, **facts)


def address(url: str) -> dict[str, str]:
    """Return the host of an address whose path or query may be secret, and a digest of it."""
    parts = urlsplit(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    return {"host": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", "url_digest": digest} if url else {}


def visible_to(principal: Principal) -> QuerySet[AuditEvent]:
    """Return the records that the user may see, the newest first.

    All for platform administrators and auditors, their teams' for team administrators. Raise Forbidden for other users.
    """
    rows = AuditEvent.objects.order_by("-seq")
    if Permission.READ_AUDIT in principal.platform:
        return rows
    teams = principal.teams_with(Permission.READ_AUDIT)
    if not teams:
        raise Forbidden(
            "role_missing",
            "this needs the permission 'read_audit', in a team or on the platform",
            remedy="ask for the role admin in a team; a token needs the scope admin or platform:audit",
        )
    return rows.filter(team_id__in=teams)


def filtered(
    rows: QuerySet[AuditEvent],
    *,
    action: str = "",
    actor: str = "",
    team: str = "",
    target: str = "",
    after: datetime | None = None,
    before: datetime | None = None,
) -> QuerySet[AuditEvent]:
    """Filter the records; empty values do not filter. `action` includes its children: `job` includes `job.submit`."""
    if action:
        rows = rows.filter(action=action) | rows.filter(action__startswith=f"{action}.")
    if actor:
        rows = rows.filter(actor=actor) | rows.filter(actor_id=actor)
    if team:
        rows = rows.filter(team_id=team)
    if target:
        rows = rows.filter(target_id=target)
    if after:
        rows = rows.filter(time__gte=after)
    if before:
        rows = rows.filter(time__lt=before)
    return rows


def verify(anchors: Iterable[Anchor] = ()) -> Iterator[str]:
    """Yield every break of the chain as a sentence. Records may be written meanwhile.

    Read `anchors` before the call: one that is made during it may name a record that this does not see.
    """
    head = AuditHead.objects.filter(pk=HEAD).first()
    if head is None:
        yield from _verify_empty(list(anchors))
        return
    key = _key(head)
    if not hmac.compare_digest(head.mac, audit_chain.head_mac(key, head.seq, head.digest)):
        yield f"the head of the chain (record {head.seq}) was not written by this platform"
    genuine: dict[int, list[Anchor]] = {}
    for anchor in anchors:
        problem = _anchor_problem(anchor, key)
        if problem:
            yield problem
        else:
            genuine.setdefault(anchor.seq, []).append(anchor)
    seq, digest = 0, START
    # What is up to the head is committed and never changes, so a moving end does no harm.
    for event in AuditEvent.objects.filter(seq__lte=head.seq).order_by("seq").iterator(chunk_size=1000):
        if event.seq != seq + 1:
            yield f"records {seq + 1} to {event.seq - 1} were removed"
        elif event.previous != digest:
            yield f"record {event.seq} does not follow record {seq}: one of them was inserted or changed"
        if not hmac.compare_digest(event.digest, _digest(key, event)):
            yield f"record {event.seq} was changed, or was not written by this platform"
        for anchor in genuine.pop(event.seq, ()):
            if anchor.digest != event.digest:
                yield f"record {event.seq} is not the one that was anchored at {anchor.time} ({anchor.place})"
        seq, digest = event.seq, event.digest
    if seq != head.seq:
        yield f"the chain ends with record {seq}, but record {head.seq} was the last one written"
    elif digest != head.digest:
        yield f"record {seq} is not the one that the head of the chain names"
    for missing in sorted(genuine):
        anchor = genuine[missing][0]
        yield f"record {missing} is missing: it was anchored at {anchor.time} ({anchor.place})"
    newest = AuditEvent.objects.order_by("-seq").values_list("seq", flat=True).first() or 0
    if newest > AuditHead.objects.values_list("seq", flat=True).get(pk=HEAD):
        yield f"records up to {newest} were inserted behind the end of the chain"


def anchor_head() -> Anchor | None:
    """Return the head as it is now, authenticated, for a place outside the database. None before the first record.

    Raises Misconfigured when the head in the database is not one that this platform has written.
    """
    head = AuditHead.objects.filter(pk=HEAD).first()
    if head is None:
        return None
    key = _key(head)
    if not hmac.compare_digest(head.mac, audit_chain.head_mac(key, head.seq, head.digest)):
        raise Misconfigured(
            "audit_trail_broken",
            f"the head of the audit trail (record {head.seq}) was not written by this platform",
            remedy="run `manage.py verify_audit` and compare with a backup",
        )
    return audit_chain.new_anchor(key, head.wrapped_key, head.seq, head.digest, timezone.now())


def contradiction(anchor: Anchor) -> str:
    """Return how the trail differs from an anchor, as a sentence; empty if it does not. Reads one record only."""
    head = AuditHead.objects.filter(pk=HEAD).first()
    problem = _anchor_problem(anchor, _key(head) if head else None)
    if problem:
        return problem
    digest = AuditEvent.objects.filter(seq=anchor.seq).values_list("digest", flat=True).first()
    if digest is None:
        return f"record {anchor.seq} is missing: it was anchored at {anchor.time} ({anchor.place})"
    if digest != anchor.digest:
        return f"record {anchor.seq} is not the one that was anchored at {anchor.time} ({anchor.place})"
    return ""


def chain_key() -> tuple[bytes, bytes] | None:
    """Return the chain's key, and the same wrapped by the master key. None before the first record."""
    head = AuditHead.objects.filter(pk=HEAD).first()
    return (_key(head), bytes(head.wrapped_key)) if head else None


def rewrap_key() -> bool:
    """Wrap the chain's key with the current master key. Return False if it already was, or if there is none."""
    with transaction.atomic():
        head = AuditHead.objects.select_for_update(no_key=True).filter(pk=HEAD).first()
        if head is None or encryption.is_wrapped_by(encryption.master_keyset(), head.wrapped_key):
            return False
        key = encryption.unwrap_by_master(head.wrapped_key, KEY_OWNER)
        head.wrapped_key = encryption.wrap_by_master(key, KEY_OWNER)
        head.save(update_fields=["wrapped_key"])
    return True


def _next(cursor: CursorWrapper) -> tuple[int, str, bytes]:
    """Lock the head's row. Return the next record's number, the last digest, and the chain's key."""
    cursor.execute(NEXT)
    if cursor.rowcount == 0:
        wrapped = encryption.wrap_by_master(encryption.new_secret(), KEY_OWNER)
        cursor.execute(FIRST, [START, wrapped])
        cursor.execute(NEXT)
    seq, previous, wrapped_key = cursor.fetchone()
    return seq, previous, encryption.unwrap_by_master(wrapped_key, KEY_OWNER).encode()


def _column(event: AuditEvent, name: str) -> Any:
    value = getattr(event, name)
    return Jsonb(value) if isinstance(value, dict) else value


def _key(head: AuditHead) -> bytes:
    return encryption.unwrap_by_master(head.wrapped_key, KEY_OWNER).encode()


def _digest(key: bytes, event: AuditEvent) -> str:
    return audit_chain.record_digest(key, event.__dict__)


def _verify_empty(anchors: list[Anchor]) -> Iterator[str]:
    if AuditEvent.objects.exists():
        yield "the head of the chain is gone, but there are records"
    elif User.objects.exists():
        yield (
            "there is neither a record nor a head, though there are users: the trail was emptied, unless nothing was "
            "done since an upgrade from a version that had none"
        )
    for anchor in anchors:
        problem = _anchor_problem(anchor, None)
        yield problem or f"record {anchor.seq} is missing: it was anchored at {anchor.time} ({anchor.place})"


def _anchor_problem(anchor: Anchor, key: bytes | None) -> str:
    """Return why an anchor does not belong to this trail; empty if it does.

    Its own key is used if it differs from the trail's.
    """
    if key is not None and audit_chain.is_genuine(anchor, key):
        return ""
    try:
        own = encryption.unwrap_by_master(bytes.fromhex(anchor.key), KEY_OWNER).encode()
    except (Misconfigured, ValueError):
        return f"the anchor of record {anchor.seq} ({anchor.place}) was not written by this platform"
    if not audit_chain.is_genuine(anchor, own):
        return f"the anchor of record {anchor.seq} ({anchor.place}) was changed"
    if key is not None:
        return (
            f"record {anchor.seq}, anchored at {anchor.time} ({anchor.place}), belongs to another chain: "
            "the trail was emptied and begun again"
        )
    return ""
