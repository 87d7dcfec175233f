"""Authentication of the audit trail: digests of records, the head and its anchors. Pure: no database.

Everything is an HMAC-SHA256 under the chain's key, which is stored wrapped by the master key. Each kind of content has
a prefix of its own, so that a code of one kind is never valid for another.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

KEY_OWNER = "audit"
FIELDS = (
    "seq", "action", "actor", "actor_id", "token_id", "team_id", "target_type", "target_id", "address", "request_id",
    "before", "after", "previous",
)  # fmt: skip


@dataclass(frozen=True)
class Anchor:
    """The head of the chain as it was at one time, as stored outside the database.

    `key` is the chain's key, wrapped by the master key, in hexadecimal: an anchor can be verified when the database is
    gone. `place` says where the anchor was read from and is not authenticated.
    """

    seq: int
    digest: str
    time: str
    key: str
    mac: str
    place: str = ""

    def line(self) -> str:
        """Return the anchor as a line of JSON, without `place`."""
        content = asdict(self)
        del content["place"]
        return json.dumps(content, separators=(",", ":"))


def record_digest(key: bytes, record: Mapping[str, Any]) -> str:
    """Return the digest of one record. `record` has FIELDS and `time`, a datetime with a zone."""
    content = {name: record[name] for name in FIELDS}
    content["time"] = record["time"].astimezone(UTC).isoformat()
    return hmac.new(key, _canonical(content), hashlib.sha256).hexdigest()


def head_mac(key: bytes, seq: int, digest: str) -> str:
    """Return the code of the head."""
    return mac(key, "head", {"seq": seq, "digest": digest})


def new_anchor(key: bytes, wrapped_key: bytes | memoryview, seq: int, digest: str, now: datetime) -> Anchor:
    """Return an authenticated anchor of the head as of `now`."""
    time, wrapped = now.astimezone(UTC).isoformat(), bytes(wrapped_key).hex()
    content = {"seq": seq, "digest": digest, "time": time, "key": wrapped}
    return Anchor(seq=seq, digest=digest, time=time, key=wrapped, mac=mac(key, "anchor", content))


def is_genuine(anchor: Anchor, key: bytes) -> bool:
    """Return whether the anchor's code is correct under this key."""
    content = {"seq": anchor.seq, "digest": anchor.digest, "time": anchor.time, "key": anchor.key}
    return hmac.compare_digest(anchor.mac, mac(key, "anchor", content))


def parse_anchor(text: str, place: str) -> Anchor:
    """Read an anchor from a line, which may have something before it (as syslog does). Raises ValueError."""
    start = text.find("{")
    content = json.loads(text[start:]) if start >= 0 else {}
    try:
        values = {name: str(content[name]) for name in ("digest", "time", "key", "mac")}
        return Anchor(seq=int(content["seq"]), place=place, **values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("no anchor of the audit trail") from error


def mac(key: bytes, purpose: str, content: Mapping[str, Any]) -> str:
    """Return the HMAC-SHA256 of `content` for one kind of content, `purpose`."""
    return hmac.new(key, f"athanor audit {purpose}\n".encode() + _canonical(content), hashlib.sha256).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
