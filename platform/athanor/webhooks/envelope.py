"""The request that a receiver gets: a CloudEvents 1.0 envelope in structured mode, and a signature."""

import hashlib
import hmac
import json
from collections.abc import Iterable
from datetime import UTC
from typing import Any

from athanor.jobs.models import JobEvent

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
SIGNATURE = "Athanor-Signature"
TYPE_PREFIX = "athanor."
TEST = "webhook.test"


def full_type(event: JobEvent) -> str:
    """Return the type with the new status, such as `job.status.failed`, so that webhooks can select failures."""
    became = event.data.get("to") if event.type == "job.status" else None
    return f"{event.type}.{became}" if became else event.type


def is_subscribed(types: list[str], event_type: str) -> bool:
    """Return whether `types` contain the type or one of its parents. An empty list contains all types."""
    return not types or any(event_type == type_ or event_type.startswith(f"{type_}.") for type_ in types)


def of_event(event: JobEvent, source: str) -> str:
    """Build the CloudEvent. `source` and `id` identify an event permanently, so that receivers can deduplicate."""
    return _encoded(
        {
            "specversion": "1.0",
            "id": f"{event.job_id}/{event.seq}",
            "source": source,
            "type": TYPE_PREFIX + full_type(event),
            "subject": event.job_id,
            "time": event.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "sequence": str(event.team_seq),
            "data": {
                "job_id": event.job_id,
                "team_id": event.team_id,
                "seq": event.seq,
                "team_seq": event.team_seq,
                "type": event.type,
                "actor": event.actor,
                "message": event.message,
                "data": event.data,
            },
        }
    )


def of_test(delivery_id: str, webhook_id: str, time: str, source: str) -> str:
    """Build the CloudEvent of a test delivery."""
    return _encoded(
        {
            "specversion": "1.0",
            "id": delivery_id,
            "source": source,
            "type": TYPE_PREFIX + TEST,
            "subject": webhook_id,
            "time": time,
            "datacontenttype": "application/json",
            "data": {"message": "this is a test"},
        }
    )


def signature(secrets: Iterable[str], timestamp: int, body: str) -> str:
    """Return `t=TIME,v1=HEX[,v1=HEX]`: one HMAC-SHA256 of "TIME.BODY" for each active secret.

    A receiver checks that one of them matches and that TIME (Unix seconds) is recent.
    """
    signed = f"{timestamp}.{body}".encode()
    marks = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={timestamp}", *(f"v1={mark}" for mark in marks)])


def _encoded(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
