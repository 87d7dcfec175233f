"""Webhook messages: a CloudEvents 1.0 envelope in structured mode, and the signatures over it.

Each message is signed twice: in the headers of Standard Webhooks (https://www.standardwebhooks.com), verified by
its libraries, and in `Athanor-Signature`.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable
from datetime import UTC
from typing import Any

from athanor.jobs.models import JobEvent

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
JSON_CONTENT_TYPE = "application/json; charset=utf-8"
SIGNATURE = "Athanor-Signature"
SECRET_PREFIX = "whsec_"  # noqa: S105 - not a secret
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
    return encoded(
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


def for_slack(event: JobEvent, job_name: str, source: str) -> str:
    """Build the body of an incoming webhook of Slack, and of servers that are compatible with it."""
    words = " ".join(filter(None, [f"{full_type(event)}:", event.message]))
    link = f"<{source}/jobs/{event.job_id}|{escape_slack(job_name)}>"
    return encoded({"text": f"{link} {escape_slack(words)}"})


def test_for_slack() -> str:
    """Build the body of a test delivery for Slack."""
    return encoded({"text": "Athanor: this is a test"})


def escape_slack(text: str) -> str:
    """Escape the control characters of Slack's messages, so that no name mentions a channel or forges a link.

    `|` ends the address within a link, and control characters a line: both become spaces.
    """
    plain = "".join(letter if letter.isprintable() and letter != "|" else " " for letter in text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def of_test(delivery_id: str, webhook_id: str, time: str, source: str) -> str:
    """Build the CloudEvent of a test delivery."""
    return encoded(
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
    """Return `t=TIME,v1=HEX[,v1=HEX]`: an HMAC-SHA256 of "TIME.BODY" for each active secret.

    `timestamp`: in Unix seconds. A receiver needs one signature to match, and a recent time.
    """
    signed = f"{timestamp}.{body}".encode()
    marks = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={timestamp}", *(f"v1={mark}" for mark in marks)])


def standard_headers(secrets: Iterable[str], message_id: str, timestamp: int, body: str) -> dict[str, str]:
    """Return the headers of Standard Webhooks 1.0, with a symmetric signature for each active secret.

    `message_id`: the same for every try of a delivery. `timestamp`: in Unix seconds.
    """
    signed = f"{message_id}.{timestamp}.{body}".encode()
    digests = [hmac.new(standard_key(secret), signed, hashlib.sha256).digest() for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }


def standard_key(secret: str) -> bytes:
    """Return the key in a secret: the base64 after its prefix. Older secrets have the URL-safe alphabet, unpadded."""
    encoded = secret.removeprefix(SECRET_PREFIX).translate(str.maketrans("-_", "+/"))
    return base64.b64decode(encoded + "=" * (-len(encoded) % 4))


def encoded(document: dict[str, Any]) -> str:
    """Return a body: JSON without spaces."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
