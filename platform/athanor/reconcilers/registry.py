"""Every reconciler: its interval and the invariant that it maintains.

Task messages only save latency; the reconcilers, sent by beat, finish every job. Pure data: beat reads it before Django
is ready.
"""

from dataclasses import dataclass

from athanor.core import wakeups


@dataclass(frozen=True)
class Reconciler:
    task: str
    seconds: float
    invariant: str


RECONCILERS = (
    Reconciler(wakeups.ADMIT, 2.0, "Jobs that can start are admitted; the others state what they wait for."),
    Reconciler(wakeups.ESTIMATE, 30.0, "The first jobs in the queue of each pool have a start estimate."),
    Reconciler(
        wakeups.DISPATCH,
        2.0,
        "Each admitted job is submitted to its cluster exactly once; jobs to be stopped are asked to stop.",
    ),
    Reconciler(wakeups.OBSERVE, 2.0, "The status of every live attempt on its cluster is current."),
    Reconciler(wakeups.FINALISE, 2.0, "The end of an attempt ends its job or queues it again."),
    Reconciler(
        wakeups.PUBLISH,
        2.0,
        "Every event has its number in the feed of its team, and a delivery for each webhook.",
    ),
    Reconciler(wakeups.DELIVER, 5.0, "Deliveries are retried until they are accepted or given up."),
    Reconciler(
        wakeups.METER,
        10.0,
        "Usage is charged to its budgets exactly once; runs that a hard budget no longer covers stop.",
    ),
    Reconciler(
        wakeups.SWEEP_STORAGE, 30.0, "Objects of retired checkpoints and of deleted items are removed from the store."
    ),
    Reconciler(
        wakeups.SWEEP_UNREFERENCED,
        60.0,
        "Objects under a job's prefix that no manifest names are counted, and deleted when no save can need them.",
    ),
    Reconciler(wakeups.ERASE_TEAMS, 30.0, "A deleted team is erased after its undo window, with a certificate."),
    Reconciler(
        wakeups.CHECK_SIGN_ONS,
        30.0,
        "A single-sign-on user whom the provider refuses to confirm has no access.",
    ),
    Reconciler(wakeups.FOLD_TELEMETRY, 60.0, "The metrics and logs of ended attempts are compacted."),
    Reconciler(
        wakeups.SWEEP_TELEMETRY,
        600.0,
        "Series and logs are deleted after their retention time, and stored answers of Idempotency-Keys after a day.",
    ),
    Reconciler(wakeups.ANCHOR_AUDIT, 300.0, "The newest record of the audit trail is anchored outside the database."),
    Reconciler(wakeups.SIMULATE, 15.0, "Requested simulations are run, or state why they failed."),
    Reconciler(
        wakeups.SURVEY,
        10.0,
        "The node inventory and health findings of each cluster are current; quarantined nodes are drained there.",
    ),
)
