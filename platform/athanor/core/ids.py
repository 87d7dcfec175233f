"""Public ids: a prefix for the kind, and a ULID, so that ids sort by creation time."""

from datetime import UTC, datetime

from ulid import ULID

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_LETTERS = 10  # of a ULID; the others are random


def new_id(prefix: str) -> str:
    return f"{prefix}_{ULID()}"


def earliest_id(prefix: str, moment: datetime) -> str:
    """No id that is made at `moment` or later sorts before it."""
    return f"{prefix}_{str(ULID.from_datetime(max(moment, EPOCH)))[:TIME_LETTERS].ljust(26, '0')}"


def user_id() -> str:
    return new_id("user")


def team_id() -> str:
    return new_id("team")


def token_id() -> str:
    return new_id("tok")


def invitation_id() -> str:
    return new_id("inv")


def secret_id() -> str:
    return new_id("sec")


def cluster_id() -> str:
    return new_id("cls")


def pool_id() -> str:
    return new_id("pool")


def probe_id() -> str:
    return new_id("prb")


def quota_node_id() -> str:
    return new_id("quota")


def budget_id() -> str:
    return new_id("bud")


def simulation_id() -> str:
    return new_id("sim")


def series_id() -> str:
    return new_id("ser")


def project_id() -> str:
    return new_id("proj")


def job_id() -> str:
    return new_id("job")


def attempt_id() -> str:
    return new_id("att")


def checkpoint_id() -> str:
    return new_id("ckp")


def artifact_id() -> str:
    return new_id("art")


def profile_id() -> str:
    return new_id("prf")


def dataset_id() -> str:
    return new_id("dset")


def deletion_id() -> str:
    return new_id("del")


def webhook_id() -> str:
    return new_id("whk")


def delivery_id() -> str:
    return new_id("dlv")


def key_id() -> str:
    return new_id("key")
