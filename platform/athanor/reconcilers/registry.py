"""Every reconciler: its interval and the invariant that it maintains.

Task messages only save latency; the reconcilers, sent by beat, finish every job. Pure data: beat reads it before Django
is ready.
"""

from dataclasses import dataclass

from athanor.core import task_triggers

IDLE_SECONDS = 60.0
"""The interval of all reconcilers that run more often, while no work waits (`backlog.is_idle`)."""


@dataclass(frozen=True)
class Reconciler:
    """A periodic task. `seconds`: its interval. `invariant`: what it maintains, as a sentence for operators."""

    task: str
    seconds: float
    invariant: str


RECONCILERS = (
    Reconciler(task_triggers.ADMIT, 2.0, "Jobs that can start are admitted; the others state what they wait for."),
    Reconciler(task_triggers.ESTIMATE, 30.0, "The first jobs in the queue of each pool have a start estimate."),
    Reconciler(
        task_triggers.DISPATCH,
        2.0,
        "Each admitted job is submitted to its cluster once; jobs to be stopped are asked to stop.",
    ),
    Reconciler(
        task_triggers.OBSERVE,
        2.0,
        "The status of every live attempt on its cluster is current; nodes that a run has lost are requested again.",
    ),
    Reconciler(task_triggers.FINALISE, 2.0, "The end of an attempt ends its job or queues it again."),
    Reconciler(
        task_triggers.GUARD_IDLE,
        30.0,
        "A running job that makes no progress is warned about, then paused at a checkpoint, by the limits of its team.",
    ),
    Reconciler(
        task_triggers.PUBLISH,
        2.0,
        "Every event has its number in the feed of its team, and a delivery for each webhook.",
    ),
    Reconciler(task_triggers.DELIVER, 5.0, "Deliveries are retried until they are accepted or given up."),
    Reconciler(
        task_triggers.ALERT,
        15.0,
        "Each alert rule is evaluated for its team's jobs, budgets and storage; whom it concerns is notified once.",
    ),
    Reconciler(task_triggers.SEND_MAILS, 15.0, "Notifications are mailed when they are due, or the mail is given up."),
    Reconciler(
        task_triggers.METER,
        10.0,
        "Usage is charged to its budgets exactly once; runs that a hard budget no longer covers stop.",
    ),
    Reconciler(
        task_triggers.GOODPUT,
        60.0,
        "The usage of every job is divided by what its slots were held for, for the goodput of teams.",
    ),
    Reconciler(
        task_triggers.SWEEP_STORAGE,
        30.0,
        "Objects of retired checkpoints, of deleted items and of imports that stopped are removed from the store.",
    ),
    Reconciler(
        task_triggers.SWEEP_UNREFERENCED,
        60.0,
        "Objects under a job's prefix that no manifest names are counted, and deleted when no save can need them.",
    ),
    Reconciler(
        task_triggers.SCRUB,
        60.0,
        "Stored checkpoints are read once a week, as far as the budget allows; damaged ones are marked.",
    ),
    Reconciler(task_triggers.ERASE_TEAMS, 30.0, "A deleted team is erased after its undo window, with a certificate."),
    Reconciler(
        task_triggers.CHECK_SIGN_ONS,
        30.0,
        "A single-sign-on user whom the provider refuses to confirm has no access.",
    ),
    Reconciler(task_triggers.COMPACT_TELEMETRY, 60.0, "The metrics and logs of ended attempts are compacted."),
    Reconciler(
        task_triggers.SWEEP_TELEMETRY,
        600.0,
        "Series and logs are deleted after their retention time, and stored answers of Idempotency-Keys after a day.",
    ),
    Reconciler(
        task_triggers.SWEEP_RECORDS,
        600.0,
        "Expired sessions, counts of failed sign-ins, admission decisions, simulations and incidents are deleted after "
        "their retention time.",
    ),
    Reconciler(
        task_triggers.ANCHOR_AUDIT, 300.0, "The newest record of the audit trail is anchored outside the database."
    ),
    Reconciler(task_triggers.SIMULATE, 15.0, "Requested simulations are run, or state why they failed."),
    Reconciler(
        task_triggers.SYNC_INVENTORY,
        10.0,
        "The node inventory and health findings of each cluster are current; quarantined nodes are drained there.",
    ),
    Reconciler(
        task_triggers.NODE_PREFLIGHTS,
        10.0,
        "Free nodes are measured after incidents and at the interval of their cluster; a job that needs one gets it.",
    ),
)
