"""The event types that only the platform writes, with their writers and the fields of their `data`. Pure data.

`tests/control_plane/jobs/test_event_types.py` fails for a type or a field that the code writes and this table
lacks. Types that a compute node sends are in `trainer.contract.events`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.contract.events import EventType


@dataclass(frozen=True)
class PlatformEventType(EventType):
    """`actors`: who is named as the `actor` of the event."""

    actors: str


_USER = "the user"
_ATTEMPT = "the attempt"
_PROFILE = "Id of the profile."
_WHY = "The reason that they gave."
_ALERT = {
    "alert": "Id of the alert.",
    "rule": "Id of the rule.",
    "name": "Name of the rule.",
    "severity": "`info`, `warning` or `critical`.",
    "measure": "What the rule measures.",
    "subject": "Id of the job, the budget or the quota node.",
    "value": "What was measured, in the unit of the measure.",
    "threshold": "Threshold of the rule, in the same unit.",
}
_MODEL = {
    "model": "Id of the registered model.",
    "name": "Name of the model.",
    "version": "Number of the version.",
}

PLATFORM_EVENTS: Mapping[str, PlatformEventType] = {
    "agent.events_refused": PlatformEventType(
        "An attempt sent events of types that it may not send. They were dropped.",
        {
            "attempt": "Id of the attempt.",
            "types": "The types, at most 10 of them.",
            "count": "Number of events that were dropped.",
        },
        "`platform`",
    ),
    "alert.firing": PlatformEventType(
        "An alert rule of the team fires: on the job, or, for a budget or the storage, on the newest job of the team.",
        _ALERT,
        "`alerts`",
    ),
    "alert.resolved": PlatformEventType(
        "An alert that fired is over, or is not measured any more. Written to the same job, or the newest of the team.",
        _ALERT,
        "`alerts`",
    ),
    "artifact.registered": PlatformEventType(
        "A model was stored.",
        {"artifact": "Id of the artifact.", "kind": "`model`.", "bytes": "Its size, in bytes."},
        _ATTEMPT,
    ),
    "attempt.node_requested": PlatformEventType(
        "The cluster has removed a node from the attempt, which continues without it. Another node was requested.",
        {
            "attempt": "Id of the attempt.",
            "node_index": "Index of the node in the attempt.",
            "node": "Name of the lost node.",
            "number": "Number of the request for this index, from 1.",
        },
        "`dispatch`",
    ),
    "attempt.node_refused": PlatformEventType(
        "The cluster refused a requested node. No other one is requested for its index.",
        {
            "attempt": "Id of the attempt.",
            "node_index": "Index of the node in the attempt.",
            "because": "The cluster's answer, as text.",
        },
        "`dispatch`",
    ),
    "checkpoint.damaged": PlatformEventType(
        "A checkpoint could not be read, or an administrator marked it as damaged. Nothing resumes from it.",
        {"checkpoint": "Id of the checkpoint.", "step": "Steps done.", "because": "What is wrong with it, as text."},
        "the attempt that could not read it, `storage` (the scrub) or the user",
    ),
    "checkpoint.intact": PlatformEventType(
        "An administrator marked a damaged checkpoint as intact. Attempts resume from it again.",
        {"checkpoint": "Id of the checkpoint.", "step": "Steps done.", "because": _WHY},
        _USER,
    ),
    "checkpoint.registered": PlatformEventType(
        "A checkpoint was stored, and a retry can resume from it.",
        {"checkpoint": "Id of the checkpoint.", "step": "Steps done.", "bytes": "Its size, in bytes."},
        _ATTEMPT,
    ),
    "checkpoint.retired": PlatformEventType(
        "An administrator gave up a checkpoint. Its objects are deleted. Retention writes no event.",
        {"checkpoint": "Id of the checkpoint.", "step": "Steps done.", "because": _WHY},
        _USER,
    ),
    "evaluation.refused": PlatformEventType(
        "The evaluation job that `output.evaluation` of the spec requests was refused; it can be submitted by hand.",
        {"because": "Why, as text.", "remedy": "What to do."},
        "`dispatch`",
    ),
    "evaluation.registered": PlatformEventType(
        "The results of an evaluation job were stored with the model.",
        {
            "artifact": "Id of the artifact that was evaluated. Null for a model in a bucket.",
            "results": "Number of results.",
            "trained_on": "Ids of data sets evaluated on that the model was trained on, by its lineage.",
        },
        _ATTEMPT,
    ),
    "evaluation.submitted": PlatformEventType(
        "The evaluation job that `output.evaluation` of the spec requests was submitted.",
        {"job": "Id of the evaluation job.", "tasks": "Names of its evaluations."},
        "`dispatch`",
    ),
    "job.budget_warning": PlatformEventType(
        "A budget of the team has used its soft limit in this period. Written to the newest job that is charged to it.",
        {
            "budget": "Id of the budget.",
            "name": "Its name.",
            "spent": "Amount spent in the period, in slot-seconds or millionths of the currency.",
            "amount": "Amount of the period, in the same unit.",
        },
        "`budgets`",
    ),
    "job.idle": PlatformEventType(
        "A running job holds slots without progress for longer than the warning limit of its team. Once until it makes "
        "progress again.",
        {
            "attempt": "Id of the attempt.",
            "seconds": "Time without progress, in seconds.",
            "slots": "Slots that it holds.",
            "cost_per_hour": "What they cost per hour now, in millionths of the currency. 0 without a price.",
            "currency": "Currency of the cost.",
            "pause_seconds": "Time without progress after which it is paused, in seconds. Null: it is not.",
        },
        "`dispatch`",
    ),
    "job.pause_requested": PlatformEventType("A user asked to pause the job.", {}, _USER),
    "job.resume_requested": PlatformEventType("A user asked to resume the job.", {}, _USER),
    "job.stop_requested": PlatformEventType("A user asked to stop the job.", {}, _USER),
    "job.status": PlatformEventType(
        "The job moved to another status. Webhooks get it as `job.status.` and the new status.",
        {
            "from": "Status before.",
            "to": "Status now.",
            "reason": "Code of the reason, if there is one.",
            "attempt": "Id of the attempt that the move belongs to.",
            "number": "Number of a new attempt of the job, from 1.",
            "decision": "Number of the admission cycle that admitted or preempted the job.",
            "for": "Id of the job of the same team that it was preempted for.",
            "budget": "Id of the budget that is used up.",
        },
        "`scheduling`, `dispatch` or `budgets`",
    ),
    "job.submitted": PlatformEventType(
        "The job was submitted.", {"forked_from": "Id of the job it was forked from, if any."}, _USER
    ),
    "job.waiting": PlatformEventType(
        "A queued job waits for another reason than before.", {"reason": "Code of the reason."}, "`scheduling`"
    ),
    "data_report.registered": PlatformEventType(
        "A data report of a data set can be read.",
        {
            "report": "Id of the report.",
            "dataset": "Id of the data set.",
            "digest": "SHA-256 of the report.",
            "critical": "Number of kinds of findings that are critical.",
            "warning": "Number of kinds of findings that are warnings.",
            "info": "Number of kinds of findings that can be intended.",
        },
        _ATTEMPT,
    ),
    "replay.registered": PlatformEventType(
        "The result of a segment of a replay was stored.",
        {
            "replayed": "Id of the job that was replayed.",
            "first_step": "Steps done at the start of the segment.",
            "last_step": "Steps done at its end.",
            "verdict": "`equal`, `within_tolerance`, `differs` or `not_comparable`.",
            "because": _WHY,
        },
        _ATTEMPT,
    ),
    "model.alias_moved": PlatformEventType(
        "An alias of a registered model was pointed to a version that the job made.",
        {
            **_MODEL,
            "alias": "Name of the alias.",
            "previous_version": "Version that it named before, if any.",
            "requirements": "Requirements of the promotion, each with the result that met it; none for another move.",
        },
        "the user, or `dispatch` for `output.alias` of the spec",
    ),
    "model.alias_removed": PlatformEventType(
        "An alias that named a version that the job made was removed.", {**_MODEL, "alias": "Name of the alias."}, _USER
    ),
    "model.registered": PlatformEventType(
        "The model that the job exported became a version of a registered model.",
        {**_MODEL, "artifact": "Id of the artifact."},
        "the user, or `dispatch` for `output.register` of the spec",
    ),
    "profile.failed": PlatformEventType(
        "A requested profile could not be made.",
        {"profile": _PROFILE, "because": "The cause, as text."},
        "the attempt or `dispatch`",
    ),
    "profile.ready": PlatformEventType(
        "A requested profile can be downloaded.",
        {
            "profile": _PROFILE,
            "artifact": "Id of the artifact.",
            "first_step": "First step that was traced.",
            "last_step": "Last step that was traced.",
            "bytes": "Its size, in bytes.",
        },
        _ATTEMPT,
    ),
    "profile.requested": PlatformEventType(
        "A user asked for a profile of the next steps.",
        {"profile": _PROFILE, "steps": "Number of steps to trace."},
        _USER,
    ),
    "secret.withheld": PlatformEventType(
        "Secrets were not passed to an attempt, because they may no longer be sent to its MLflow server.",
        {"secrets": "Names of the secrets."},
        "`dispatch`",
    ),
}
