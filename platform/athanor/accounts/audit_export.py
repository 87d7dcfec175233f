"""The audit trail as a file that authenticates itself: JSON lines with their chain, closed by an authenticated end.

The last line names the head of the trail, the number of lines and a digest of them, under a code of the chain's key.
`verify_file` needs the file and the master key, and no database.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from athanor.accounts import audit, audit_chain
from athanor.accounts.models import AuditEvent, AuditHead
from athanor.core import encryption
from athanor.core.errors import Misconfigured

CHUNK = 1000


def lines(rows: QuerySet[AuditEvent], render: Callable[[AuditEvent], Any], *, is_complete: bool) -> Iterator[bytes]:
    """Yield the records of `rows`, oldest first, and the end. `is_complete`: nothing was filtered or hidden."""
    head = AuditHead.objects.filter(pk=audit.HEAD).first()
    known = audit.chain_key()
    if head is None or known is None:
        return
    digest, count = hashlib.sha256(), 0
    for event in rows.filter(seq__lte=head.seq).order_by("seq").iterator(chunk_size=CHUNK):
        line = json.dumps(render(event), ensure_ascii=False).encode() + b"\n"
        digest.update(line)
        count += 1
        yield line
    key, wrapped_key = known
    end = {
        "seq": head.seq,
        "digest": head.digest,
        "lines": count,
        "sha256": digest.hexdigest(),
        "complete": is_complete,
        "time": timezone.now().isoformat(),
        "key": wrapped_key.hex(),
    }
    yield json.dumps({"end": {**end, "mac": audit_chain.mac(key, "export", end)}}).encode() + b"\n"


def verify_file(file_lines: Iterable[bytes]) -> Iterator[str]:
    """Yield every problem of an exported file as a sentence. Needs the master key only."""
    read = list(file_lines)
    end = _end(read)
    if end is None:
        yield "the file has no end line: it was cut off, or is no export of an audit trail"
        return
    try:
        key = encryption.unwrap_by_master(bytes.fromhex(end["key"]), audit_chain.KEY_OWNER).encode()
    except (Misconfigured, ValueError, KeyError, TypeError):
        yield "the end line's key does not open with this master key"
        return
    content = {name: value for name, value in end.items() if name != "mac"}
    if not hmac.compare_digest(str(end.get("mac")), audit_chain.mac(key, "export", content)):
        yield "the end line was changed, or was not written by this platform"
        return
    records = read[:-1]
    if len(records) != end["lines"] or hashlib.sha256(b"".join(records)).hexdigest() != end["sha256"]:
        yield f"the file has {len(records)} records that differ from the {end['lines']} that were exported"
    seq, digest = 0, audit.START
    for number, line in enumerate(records, start=1):
        record = _record(line)
        if record is None:
            yield f"line {number} is no record"
            continue
        if not hmac.compare_digest(str(record["digest"]), audit_chain.record_digest(key, record)):
            yield f"record {record['seq']} was changed, or was not written by this platform"
        if end["complete"] and (record["seq"], record["previous"]) != (seq + 1, digest):
            yield f"record {record['seq']} does not follow record {seq}"
        seq, digest = record["seq"], record["digest"]
    if end["complete"] and (seq, digest) != (end["seq"], end["digest"]):
        yield f"the file ends with record {seq}, but the trail with record {end['seq']}"


def _end(read: list[bytes]) -> dict[str, Any] | None:
    try:
        end = json.loads(read[-1])["end"]
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    return end if isinstance(end, dict) else None


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        if set(audit_chain.FIELDS) | {"digest"} <= record.keys():
            return {**record, "time": datetime.fromisoformat(record["time"])}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None
