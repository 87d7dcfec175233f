"""Public ids: a prefix for the kind, and a ULID, so that ids sort by creation time."""

from datetime import UTC, datetime

from ulid import ULID

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_LETTERS = 10  # of a ULID encode the time; the others are random


def new_id(prefix: str) -> str:
    """Return a new id such as `job_01J...`."""
    return f"{prefix}_{ULID()}"


def earliest_id(prefix: str, moment: datetime) -> str:
    """Return an id that sorts at or before every id created at `moment` or later."""
    return f"{prefix}_{str(ULID.from_datetime(max(moment, EPOCH)))[:TIME_LETTERS].ljust(26, '0')}"


def user_id() -> str:
    """Return a new id of a user."""
    return new_id("user")


def team_id() -> str:
    """Return a new id of a team."""
    return new_id("team")


def token_id() -> str:
    """Return a new id of an API token."""
    return new_id("tok")


def invitation_id() -> str:
    """Return a new id of an invitation."""
    return new_id("inv")


def secret_id() -> str:
    """Return a new id of a team's or a webhook's secret."""
    return new_id("sec")


def cluster_id() -> str:
    """Return a new id of a cluster."""
    return new_id("cls")


def pool_id() -> str:
    """Return a new id of a pool."""
    return new_id("pool")


def probe_id() -> str:
    """Return a new id of a stored health check."""
    return new_id("prb")


def node_preflight_id() -> str:
    """Return a new id of a preflight of a node."""
    return new_id("pre")


def quota_node_id() -> str:
    """Return a new id of a node of the quota tree."""
    return new_id("quota")


def budget_id() -> str:
    """Return a new id of a budget."""
    return new_id("bud")


def simulation_id() -> str:
    """Return a new id of a simulation."""
    return new_id("sim")


def series_id() -> str:
    """Return a new id of a price or carbon series."""
    return new_id("ser")


def project_id() -> str:
    """Return a new id of a project."""
    return new_id("proj")


def job_id() -> str:
    """Return a new id of a job."""
    return new_id("job")


def attempt_id() -> str:
    """Return a new id of an attempt."""
    return new_id("att")


def checkpoint_id() -> str:
    """Return a new id of a checkpoint."""
    return new_id("ckp")


def artifact_id() -> str:
    """Return a new id of an artifact."""
    return new_id("art")


def signing_key_id() -> str:
    """Return a new id of a signing key."""
    return new_id("sgk")


def model_id() -> str:
    """Return a new id of a registered model."""
    return new_id("mdl")


def profile_id() -> str:
    """Return a new id of a profile."""
    return new_id("prf")


def dataset_id() -> str:
    """Return a new id of a data set."""
    return new_id("dset")


def data_report_id() -> str:
    """Return a new id of a data report."""
    return new_id("rep")


def deletion_id() -> str:
    """Return a new id of a deletion."""
    return new_id("del")


def webhook_id() -> str:
    """Return a new id of a webhook."""
    return new_id("whk")


def delivery_id() -> str:
    """Return a new id of a webhook delivery."""
    return new_id("dlv")


def key_id() -> str:
    """Return a new id of a data key."""
    return new_id("key")


def backup_id() -> str:
    """Return a new id of a backup."""
    return new_id("bkp")


def alert_rule_id() -> str:
    """Return a new id of an alert rule."""
    return new_id("alr")


def alert_id() -> str:
    """Return a new id of an alert."""
    return new_id("alt")


def notification_id() -> str:
    """Return a new id of a notification."""
    return new_id("ntf")


def mail_id() -> str:
    """Return a new id of a mail."""
    return new_id("mail")
