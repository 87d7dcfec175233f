"""Names and labels of our objects. Users' text appears only in annotations, or as a slug with a digest."""

import hashlib
import re

from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.plan import LaunchPlan

MANAGER = "athanor"
OWNER = "athanor.dev/owner"
ATTEMPT = "athanor.dev/attempt"
JOB = "athanor.dev/job"
TEAM = "athanor.dev/team"
SPOT = "athanor.dev/spot"
NODES = "athanor.dev/nodes"  # annotation: how many of the pods must end well; the others are expendable
JOB_NAME = "athanor.dev/job-name"  # annotation
TEAM_NAME = "athanor.dev/team-name"  # annotation
CANCELLED = "athanor.dev/cancelled"  # annotation: we asked for its end
VERDICT = "athanor.dev/verdict"  # annotation: how the run ended, if its Job does not show it
SETTINGS = "athanor.dev/settings"  # annotation of a namespace: a digest of what it was set up with
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"


def slug(text: str, max_length: int = 30) -> str:
    """Return a text as part of a DNS label, without other characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:max_length].rstrip("-")


def distinct(text: str, max_length: int = 30) -> str:
    """Return a slug that is unique for each text: `research` is `research-1a2b3c4d`."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return "-".join(filter(None, (slug(text, max_length), digest)))


def namespace_of(config: KubernetesConfig, team: str) -> str:
    """Return the name of a team's namespace."""
    return f"{config.namespace_prefix}-{distinct(team or 'default')}"


def owner_labels(config: KubernetesConfig) -> dict[str, str]:
    """Return the labels of all objects of this installation."""
    return {"app.kubernetes.io/managed-by": MANAGER, OWNER: config.namespace_prefix}


def selector(labels: dict[str, str]) -> str:
    """Return labels as a label selector."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def ours(config: KubernetesConfig) -> str:
    """Return the label selector of all objects of this installation."""
    return selector(owner_labels(config))


def attempt_labels(config: KubernetesConfig, plan: LaunchPlan) -> dict[str, str]:
    """Return the labels of the objects of an attempt."""
    pool = config.pools.get(plan.pool)
    return {
        **config.labels,
        **owner_labels(config),
        "app.kubernetes.io/name": "athanor-trainer",
        "app.kubernetes.io/component": "agent",
        "app.kubernetes.io/instance": plan.backend_name,
        ATTEMPT: plan.backend_name,
        TEAM: distinct(plan.team or "default"),
        **({JOB: slug(plan.job_id, 60)} if slug(plan.job_id) else {}),
        **({SPOT: "true"} if pool is not None and pool.spot else {}),
    }
