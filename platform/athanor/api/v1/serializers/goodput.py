"""Serializers of the goodput ledger."""

from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import ReasonSerializer, enum_values
from athanor.budgets.goodput import AttemptLedger, Ledger, Loss, Sum, Sums
from athanor.budgets.goodput_statement import Amount, Cause, JobRow, Statement
from athanor.jobs.models import Job
from athanor.jobs.reasons import explain
from athanor.jobs.selectors import checkpoint_interval_of
from athanor.jobs.timeline import Activity

_COST = "Cost in millionths of the currency, as metered. The parts add up to the cost of the attempts."


class GoodputPhaseSerializer(serializers.Serializer[Any]):
    """A phase of the start-ups."""

    phase = serializers.CharField(help_text="Name of the phase, such as `launch`, `import` or `first_step`.")
    slot_seconds = serializers.FloatField(help_text="Its time multiplied by the slots.")
    cost = serializers.IntegerField(help_text=_COST)


class GoodputCategorySerializer(serializers.Serializer[Any]):
    """What slots were held for."""

    activity = serializers.ChoiceField(
        choices=enum_values(Activity),
        help_text=(
            "What the slots were held for, as in the job's timeline. `training` and `preparing` are productive; "
            "`idle`: slots of spare nodes that wait and of lost ones, while other nodes have ranks; "
            "`stalled`: ranks made no progress, or waited for one that made none; `lost`: steps that were repeated, or "
            "are gone; `unattributed`: not known."
        ),
    )
    slot_seconds = serializers.FloatField(help_text="Time multiplied by the slots.")
    share = serializers.FloatField(help_text="Share of `slot_seconds` of the job or attempt, from 0 to 1.")
    cost = serializers.IntegerField(help_text=_COST)
    phases = GoodputPhaseSerializer(many=True, help_text="Of `startup`: its phases. Otherwise empty.")


class GoodputAttemptSerializer(serializers.Serializer[Any]):
    """The ledger of one attempt."""

    attempt = serializers.IntegerField(help_text="Number of the attempt, from 1.")
    start = serializers.DateTimeField(help_text="Its launch, ISO 8601 in UTC.")
    end = serializers.DateTimeField(help_text="Its end, or now.")
    metered_until = serializers.DateTimeField(
        allow_null=True, help_text="Until when its cost is metered. Null if it is not metered yet."
    )
    slots = serializers.IntegerField(help_text="Its slots.")
    slot_seconds = serializers.FloatField(
        help_text="Time from `start` to `end`, multiplied by `slots`: the sum of the categories."
    )
    goodput = serializers.FloatField(allow_null=True, help_text="Productive share of `slot_seconds`, from 0 to 1.")
    cost = serializers.IntegerField(help_text=_COST)
    refunded = serializers.IntegerField(
        help_text="Part of `cost` that is not charged, because infrastructure faults lost it."
    )
    categories = GoodputCategorySerializer(many=True, help_text="What its slots were held for.")


class InterruptionSerializer(serializers.Serializer[Any]):
    """The end of an attempt other than by completion, or a restart of its processes, with what it cost."""

    attempt = serializers.IntegerField(help_text="Number of the attempt that was interrupted.")
    time = serializers.DateTimeField(help_text="When its processes ended, ISO 8601 in UTC.")
    in_place = serializers.BooleanField(
        help_text="Whether the processes were restarted within the attempt, rather than the attempt ended."
    )
    reason = ReasonSerializer(allow_null=True, help_text="Why, with the blame. Null if it was not reported.")
    node = serializers.CharField(
        allow_null=True, help_text="Name of the node that reported it. Null if that is not known."
    )
    steps_lost = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Steps that were done and repeated. Null if it is not known, as before training has resumed. The time may "
            "include a part of another step and what it took to notice the fault."
        ),
    )
    lost_slot_seconds = serializers.FloatField(help_text="Slot-seconds of work that was lost.")
    stalled_slot_seconds = serializers.FloatField(help_text="Slot-seconds without progress before it.")
    startup_slot_seconds = serializers.FloatField(help_text="Slot-seconds of the start-up that followed.")
    cost = serializers.IntegerField(help_text="Cost of these three, in millionths of the currency.")
    refunded = serializers.IntegerField(
        help_text="What its attempt was refunded, in millionths of the currency. 0 for a restart in place."
    )


class CheckpointIntervalSerializer(serializers.Serializer[Any]):
    """The longest time between stored checkpoints that a job has chosen with `checkpoint.every_minutes` `auto`."""

    minutes = serializers.FloatField(help_text="Longest time between checkpoints, in minutes of training.")
    stall_seconds = serializers.FloatField(help_text="Seconds that training waits while a save copies the state.")
    slowdown_seconds = serializers.FloatField(help_text="Seconds that steps take longer while a save is written.")
    mean_hours_between_failures = serializers.FloatField(
        help_text="Estimated mean time between failures of the job, in hours."
    )
    chosen_at = serializers.DateTimeField(help_text="When it was chosen, ISO 8601 in UTC.")


class GoodputSerializer(serializers.Serializer[Any]):
    """What the slots of a job were held for, from the launch to the end of each attempt."""

    currency = serializers.CharField(help_text="Currency of the amounts, ISO 4217.")
    slot_seconds = serializers.FloatField(help_text="Sum over the attempts.")
    goodput = serializers.FloatField(
        allow_null=True, help_text="Productive share of `slot_seconds`, from 0 to 1. Null before the first launch."
    )
    cost = serializers.IntegerField(help_text=_COST)
    refunded = serializers.IntegerField(
        help_text="Part of `cost` that is not charged, because infrastructure faults lost it."
    )
    charged = serializers.IntegerField(help_text="`cost` without `refunded`.")
    categories = GoodputCategorySerializer(many=True, help_text="What the slots were held for. They sum to the totals.")
    attempts = GoodputAttemptSerializer(many=True, help_text="The ledger of each attempt that was launched, in order.")
    interruptions = InterruptionSerializer(many=True, help_text="What interrupted the job, in order.")
    checkpoint_interval = CheckpointIntervalSerializer(
        allow_null=True,
        help_text=(
            "The longest time between checkpoints, as last chosen. Null without `checkpoint.every_minutes` `auto`, and "
            "before the first save is measured."
        ),
    )


class GoodputAmountSerializer(serializers.Serializer[Any]):
    """Slot time and its cost."""

    slot_seconds = serializers.IntegerField(help_text="Slot-seconds, as metered.")
    cost = serializers.IntegerField(help_text="Their cost in millionths of the currency.")


class GoodputCauseSerializer(serializers.Serializer[Any]):
    """Interruptions for one reason, and what they cost."""

    reason = ReasonSerializer(allow_null=True, help_text="Why, with the blame. Null if it was not reported.")
    attempts = serializers.IntegerField(help_text="Attempts that it ended in the time range.")
    restarts = serializers.IntegerField(help_text="Restarts of processes within attempts in the time range.")
    steps_lost = serializers.IntegerField(
        help_text="Steps that were done and repeated, as far as they are known, of the interruptions in the time range."
    )
    lost_slot_seconds = serializers.IntegerField(help_text="Slot-seconds of work that was lost.")
    stalled_slot_seconds = serializers.IntegerField(help_text="Slot-seconds without progress before it.")
    startup_slot_seconds = serializers.IntegerField(help_text="Slot-seconds of the start-ups that followed.")
    cost = serializers.IntegerField(help_text="Cost of these three, in millionths of the currency.")
    refunded = serializers.IntegerField(
        help_text="What attempts were refunded for it, in millionths of the currency. They sum to the total."
    )


class GoodputJobSerializer(serializers.Serializer[Any]):
    """A job with much slot time that was not productive."""

    id = serializers.CharField(allow_null=True, help_text="Id of the job. Null for a team that is not yours.")
    name = serializers.CharField(allow_null=True, help_text="Name of the job. Null for a team that is not yours.")
    slot_seconds = serializers.IntegerField(help_text="Slot-seconds of the job in the time range.")
    cost = serializers.IntegerField(help_text="Their cost in millionths of the currency.")
    unproductive_slot_seconds = serializers.IntegerField(
        help_text="Slot-seconds that were neither training nor preparation of data."
    )
    unproductive_cost = serializers.IntegerField(help_text="Their cost in millionths of the currency.")


class GoodputSumsSerializer(serializers.Serializer[Any]):
    """What slots were held for, in one currency. `categories` and `uncounted` sum to the totals."""

    currency = serializers.CharField(help_text="Currency of the amounts, ISO 4217.")
    slot_seconds = serializers.IntegerField(help_text="Slot-seconds that were used, as in `GET /costs`.")
    goodput = serializers.FloatField(
        allow_null=True,
        help_text="Productive share of what is divided, from 0 to 1. Null as long as nothing is.",
    )
    cost = serializers.IntegerField(help_text="Cost in millionths of the currency, as in `GET /costs`.")
    refunded = serializers.IntegerField(
        help_text="Part of `cost` that is not charged, because infrastructure faults lost it."
    )
    charged = serializers.IntegerField(help_text="`cost` without `refunded`, as in `GET /costs`.")
    categories = GoodputCategorySerializer(
        many=True, help_text="What the slots were held for. `share` is of `slot_seconds` without `uncounted`."
    )
    uncounted = GoodputAmountSerializer(
        help_text="Usage that is not divided yet, as of the last minutes of running jobs, or was not stored by job."
    )
    interruptions = GoodputCauseSerializer(
        many=True, help_text="What interrupted jobs, by reason, the most expensive first."
    )
    jobs = GoodputJobSerializer(
        many=True, help_text="The 20 jobs with the most slot time that was not productive, in that order."
    )


class GoodputStatementSerializer(serializers.Serializer[Any]):
    """What the slots of teams were held for."""

    after = serializers.DateTimeField(help_text="Begin of the range, ISO 8601 in UTC.")
    before = serializers.DateTimeField(
        help_text="End of the range. Usage is of full hours: those that begin within the range count."
    )
    items = GoodputSumsSerializer(many=True, help_text="One for each currency.")


def serialize_statement(statement: Statement) -> dict[str, Any]:
    """Return a statement as GoodputSumsSerializer describes it."""
    counted = statement.total.slot_seconds - statement.uncounted.slot_seconds
    causes = sorted(statement.causes.values(), key=lambda each: (-each.cost, each.reason))
    return {
        "currency": statement.currency,
        **_amount(statement.total),
        "goodput": statement.goodput,
        "refunded": statement.refunded,
        "charged": statement.total.cost - statement.refunded,
        "categories": [
            {
                "activity": activity.value,
                **_amount(category),
                "share": category.slot_seconds / counted if counted else 0.0,
                "phases": [{"phase": phase, **_amount(each)} for phase, each in category.phases.items()],
            }
            for activity in Activity
            if (category := statement.categories.get(activity))
        ],
        "uncounted": _amount(statement.uncounted),
        "interruptions": [_cause(each) for each in causes],
        "jobs": [_job(each) for each in statement.jobs],
    }


def _amount(amount: Amount) -> dict[str, int]:
    return {"slot_seconds": amount.slot_seconds, "cost": amount.cost}


def _cause(cause: Cause) -> dict[str, Any]:
    amounts = {
        f"{activity}_slot_seconds": cause.amounts.get(activity, Amount()).slot_seconds
        for activity in (Activity.LOST, Activity.STALLED, Activity.STARTUP)
    }
    return {
        "reason": explain(cause.reason),
        "attempts": cause.attempts,
        "restarts": cause.restarts,
        "steps_lost": cause.steps_lost,
        **amounts,
        "cost": cause.cost,
        "refunded": cause.refunded,
    }


def _job(job: JobRow) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        **_amount(job.total),
        "unproductive_slot_seconds": job.unproductive.slot_seconds,
        "unproductive_cost": job.unproductive.cost,
    }


def serialize_ledger(ledger: Ledger, job: Job) -> dict[str, Any]:
    """Return a ledger, and the job's interval of checkpoints, as GoodputSerializer describes it."""
    chosen = checkpoint_interval_of(job)
    return {
        "currency": job.pool.currency,
        **_totals(ledger.sums),
        "refunded": ledger.refunded,
        "charged": ledger.sums.total.cost - ledger.refunded,
        "attempts": [_attempt(attempt) for attempt in ledger.attempts],
        "interruptions": [_interruption(loss) for loss in ledger.losses],
        "checkpoint_interval": chosen and {"chosen_at": chosen[0], **chosen[1].model_dump()},
    }


def _totals(sums: Sums) -> dict[str, Any]:
    whole = sums.total.slot_time
    return {
        "slot_seconds": whole.total_seconds(),
        "goodput": sums.goodput,
        "cost": sums.total.cost,
        "categories": [
            {
                "activity": activity.value,
                **_sum(sums.activities[activity]),
                "share": sums.activities[activity].slot_time / whole,
                "phases": [{"phase": phase, **_sum(each)} for phase, each in sums.activities[activity].phases.items()],
            }
            for activity in Activity
            if activity in sums.activities
        ],
    }


def _sum(each: Sum) -> dict[str, Any]:
    return {"slot_seconds": each.slot_time.total_seconds(), "cost": each.cost}


def _attempt(attempt: AttemptLedger) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "start": attempt.start,
        "end": attempt.end,
        "metered_until": attempt.metered_until,
        "slots": attempt.slots,
        "refunded": attempt.refunded,
        **_totals(attempt.sums),
    }


def _interruption(loss: Loss) -> dict[str, Any]:
    interruption, activities = loss.interruption, loss.sums.activities
    slot_seconds = {
        f"{activity}_slot_seconds": activities[activity].slot_time.total_seconds() if activity in activities else 0.0
        for activity in (Activity.LOST, Activity.STALLED, Activity.STARTUP)
    }
    return {
        "attempt": interruption.attempt,
        "time": interruption.time,
        "in_place": interruption.in_place,
        "reason": explain(interruption.reason, interruption.detail),
        "node": interruption.node or None,
        "steps_lost": interruption.steps_lost,
        **slot_seconds,
        "cost": loss.sums.total.cost,
        "refunded": loss.refunded,
    }
