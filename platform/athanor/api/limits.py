"""How large and how slow a request may be, by its path."""

import re
from dataclasses import dataclass
from enum import StrEnum

from athanor.core.errors import TooLarge

MIB = 2**20
DEFAULT_BODY_BYTES = MIB
# Manifests list every part of a checkpoint: 145,000 of them for 405 billion parameters.
AGENT_BODY_BYTES = 64 * MIB
SERIES_BODY_BYTES = 8 * MIB
# Requests before authentication are small.
SIGN_IN_BODY_BYTES = 16 * 1024

# A body must arrive within GRACE_SECONDS plus the time that it takes at BYTES_PER_SECOND.
GRACE_SECONDS = 20.0
BYTES_PER_SECOND = 32 * 1024


class Lane(StrEnum):
    """A kind of request. Each has its own threads, so that one kind cannot use up those of another."""

    HEALTH = "health"
    AGENT = "agent"
    QUICK = "quick"
    TRANSFER = "transfer"


@dataclass(frozen=True)
class RequestLimits:
    """`body_bytes` is None where the body is streamed to the view, which has limits of its own (the team's quota)."""

    lane: Lane
    body_bytes: int | None


# Long transfers: bodies and responses are streamed. The thread waits for the client, which must reach a least rate.
_TRANSFER = re.compile(
    r"^/api/v1/(datasets|models:import|datasets/[^/]+/preview|jobs/[^/]+/logs:download|audit:export"
    r"|(artifacts|checkpoints)/[^/]+/archive)$"
)
_OTHER_BODIES = (
    (re.compile(r"^/api/v1/series(/|$)"), SERIES_BODY_BYTES),
    (re.compile(r"^/api/v1/(session|session:second-factor|invitations:accept|second-factors.*)$"), SIGN_IN_BODY_BYTES),
)


class BodyTooLarge(TooLarge):
    """A body larger than the limit of its address."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            "body_too_large",
            f"the body is larger than {limit} bytes, the limit of this address",
            remedy="send less in one request; training data goes to POST /api/v1/datasets, models to "
            "POST /api/v1/models:import, which stream",
        )


def limits_of(path: str) -> RequestLimits:
    """Return the limits of a request to `path`."""
    if path in ("/healthz", "/readyz"):
        return RequestLimits(Lane.HEALTH, 0)
    if path.startswith("/api/agent/"):
        return RequestLimits(Lane.AGENT, AGENT_BODY_BYTES)
    if _TRANSFER.match(path):
        return RequestLimits(Lane.TRANSFER, None)
    other = (size for pattern, size in _OTHER_BODIES if pattern.match(path))
    return RequestLimits(Lane.QUICK, next(other, DEFAULT_BODY_BYTES))


def deadline_seconds(received_bytes: int) -> float:
    """Return the seconds from the start of a request by which more than `received_bytes` must have arrived."""
    return GRACE_SECONDS + received_bytes / BYTES_PER_SECOND
