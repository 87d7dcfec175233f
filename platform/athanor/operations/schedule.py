"""Every sweeper: how often it runs, and the one invariant that it alone keeps.

Messages only save latency: these, sent by beat, carry every job to its end. Pure data: beat reads it before Django is
ready.
"""

from dataclasses import dataclass

from athanor.core import task_triggers


@dataclass(frozen=True)
class Sweeper:
    task: str
    seconds: float
    invariant: str


SWEEPERS = (
    Sweeper(task_triggers.ADMIT, 2.0, "A job that may start is admitted, and one that waits says on what."),
    Sweeper(task_triggers.ESTIMATE, 30.0, "The first in line of each pool know when they will start."),
    Sweeper(
        task_triggers.DISPATCH, 2.0, "An admitted job is on its cluster, once; one that is not wanted is asked to end."
    ),
    Sweeper(task_triggers.OBSERVE, 2.0, "What its cluster says of a live attempt is known; none is forgotten."),
    Sweeper(task_triggers.FINALISE, 2.0, "The end of an attempt ends its job or queues it again."),
    Sweeper(
        task_triggers.PUBLISH,
        2.0,
        "Every event has its place in its team's feed, and a delivery for each webhook.",
    ),
    Sweeper(task_triggers.DELIVER, 5.0, "A delivery is tried until it is taken or given up."),
    Sweeper(
        task_triggers.METER, 10.0, "What ran is charged to its budgets, once; a run that they do not carry on stops."
    ),
    Sweeper(
        task_triggers.SWEEP_STORAGE,
        30.0,
        "Nothing of a retired checkpoint, or of what was deleted, stays in the store.",
    ),
    Sweeper(
        task_triggers.SWEEP_UNREFERENCED,
        60.0,
        "Objects under a job's prefix that no manifest names are counted, and deleted when no save can need them.",
    ),
    Sweeper(task_triggers.ERASE_TEAMS, 30.0, "A deleted team whose undo window is over is erased, with a certificate."),
    Sweeper(
        task_triggers.CHECK_SIGN_ONS,
        30.0,
        "A single-sign-on user whom the provider refuses to confirm has no access.",
    ),
    Sweeper(task_triggers.COMPACT_TELEMETRY, 60.0, "What an ended attempt has reported lies where it is read from."),
    Sweeper(
        task_triggers.SWEEP_TELEMETRY,
        600.0,
        "No series or log is kept longer than the policy says, and no answer to an Idempotency-Key beyond a day.",
    ),
    Sweeper(task_triggers.ANCHOR_AUDIT, 300.0, "The end of the audit trail is recorded outside the database."),
    Sweeper(task_triggers.SIMULATE, 15.0, "A simulation that was asked for is carried out, or says why not."),
    Sweeper(
        task_triggers.SYNC_INVENTORY,
        10.0,
        "It is known which nodes a cluster has and what is wrong with it; a quarantined node is drained there.",
    ),
)
