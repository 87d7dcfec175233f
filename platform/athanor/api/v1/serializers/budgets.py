"""Serializers of budgets and their statements."""

from typing import Any

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import NamedSerializer
from athanor.budgets.models import Budget, BudgetPeriod

MAX_AMOUNT = 2**53 - 1


class BudgetPeriodSerializer(serializers.Serializer[BudgetPeriod]):
    """One calendar period of a budget."""

    start = serializers.DateTimeField(help_text="First moment of the period, ISO 8601 in UTC.")
    end = serializers.DateTimeField(help_text="First moment after the period, ISO 8601 in UTC.")
    amount = serializers.IntegerField(
        help_text=(
            "What the period has to spend, in slot-seconds or, for a budget of money, in millionths of the currency."
        )
    )
    available = serializers.IntegerField(
        source="allowance", help_text="What is neither spent nor reserved, in the same unit. May be below zero."
    )
    reserved = serializers.IntegerField(
        help_text=("Reserved for jobs that hold slots, up to their time limit or the period's end, in the same unit.")
    )
    spent = serializers.IntegerField(help_text="Spent, in the same unit, without what was refunded.")
    lost = serializers.IntegerField(help_text="Refunded because the infrastructure failed, in the same unit.")
    warned_at = serializers.DateTimeField(
        allow_null=True,
        help_text=("Time at which `soft_percent` was spent and the event was recorded, ISO 8601 in UTC. Null before."),
    )


class ForecastSerializer(serializers.Serializer[Any]):
    """Expected spending at a period's end."""

    p50 = serializers.IntegerField(
        help_text=(
            "Likely spending at the period's end, in slot-seconds or, for a budget of money, in "
            "millionths of the currency: what is spent, and for the remaining time the daily mean of the "
            "last 28 days, or the present rate if fewer than three are known."
        )
    )
    p90 = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Spending that is exceeded in one of ten cases, in the same unit. Null with fewer than three "
            "complete days to learn from."
        ),
    )
    at_present_rate = serializers.IntegerField(
        help_text=("Spending at the period's end if what runs now continues and nothing else starts, in the same unit.")
    )
    exhausted_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Time at which `p50` reaches the amount, ISO 8601 in UTC. Null if it does not in this period.",
    )


class BudgetSerializer(serializers.Serializer[Any]):
    """What the subtree of a quota node may spend in each calendar period."""

    id = serializers.CharField()
    node = NamedSerializer(help_text="Node of the quota tree whose subtree is charged.")
    path = serializers.CharField(help_text="Names from below the organisation down to the node, joined by `/`.")
    name = serializers.CharField(help_text="Name, unique within the node.")
    unit = serializers.ChoiceField(
        choices=Budget.Unit.values,
        help_text="`slot_hours` (amounts are slot-seconds) or `money` (amounts are millionths of the currency).",
    )
    currency = serializers.CharField(
        allow_blank=True, help_text="Currency of a budget of money, ISO 4217. Empty for `slot_hours`."
    )
    accelerator = serializers.CharField(allow_blank=True, help_text="Accelerator whose usage is charged. Empty: all.")
    period = serializers.ChoiceField(
        choices=Budget.Period.values, help_text="Calendar period, in UTC: `day`, `month` or `quarter`."
    )
    amount = serializers.IntegerField(
        help_text=(
            "What each period has to spend, in slot-seconds or, for a budget of money, in millionths of the currency."
        )
    )
    soft_percent = serializers.IntegerField(help_text="Percentage of the amount at which a warning is recorded.")
    hard = serializers.BooleanField(
        help_text=("Whether jobs cannot start without enough of it, and runs checkpoint and wait when it is used up.")
    )
    active = serializers.BooleanField(help_text="Whether usage is charged to it.")
    created_at = serializers.DateTimeField()
    current = BudgetPeriodSerializer(allow_null=True, help_text="The current period. Null if it has none.")
    forecast = ForecastSerializer(allow_null=True, help_text="Forecast of the current period. Null if it has none.")


class NewBudgetSerializer(RequestSerializer):
    """A budget to create."""

    node_id = serializers.CharField(
        max_length=40, help_text="Id of the node of the quota tree whose subtree is charged."
    )
    name = serializers.CharField(max_length=100, help_text="Name, unique within the node.")
    unit = serializers.ChoiceField(
        choices=Budget.Unit.values,
        help_text="`slot_hours` (amounts are slot-seconds) or `money` (amounts are millionths of the currency).",
    )
    currency = serializers.RegexField(
        r"^[A-Z]{3}$",
        required=False,
        default="",
        help_text="Currency, ISO 4217. A budget of money needs one; for `slot_hours` it is ignored.",
    )
    accelerator = serializers.RegexField(
        r"^[A-Za-z0-9][A-Za-z0-9:._/-]*$",
        max_length=40,
        required=False,
        default="",
        help_text="Accelerator whose usage is charged. Empty: all.",
    )
    period = serializers.ChoiceField(
        choices=Budget.Period.values, help_text="Calendar period, in UTC: `day`, `month` or `quarter`."
    )
    amount = serializers.IntegerField(
        min_value=0,
        max_value=MAX_AMOUNT,
        help_text=(
            "What each period has to spend, in slot-seconds or, for a budget of money, in millionths of the currency."
        ),
    )
    soft_percent = serializers.IntegerField(
        min_value=1,
        max_value=100,
        required=False,
        default=80,
        help_text="Percentage of the amount at which a warning is recorded.",
    )
    hard = serializers.BooleanField(
        required=False,
        default=False,
        help_text=("Whether jobs cannot start without enough of it, and runs checkpoint and wait when it is used up."),
    )


class BudgetChangeSerializer(RequestSerializer):
    """Changes of a budget."""

    name = serializers.CharField(max_length=100, required=False, help_text="Name, unique within the node.")
    amount = serializers.IntegerField(
        min_value=0,
        max_value=MAX_AMOUNT,
        required=False,
        help_text=(
            "What each period has to spend, in slot-seconds or, for a budget of money, in millionths of the currency."
        ),
    )
    soft_percent = serializers.IntegerField(
        min_value=1, max_value=100, required=False, help_text="Percentage of the amount at which a warning is recorded."
    )
    hard = serializers.BooleanField(
        required=False,
        help_text=("Whether jobs cannot start without enough of it, and runs checkpoint and wait when it is used up."),
    )
    active = serializers.BooleanField(required=False, help_text="Whether usage is charged to it.")


class BurnPointSerializer(serializers.Serializer[Any]):
    """Spending up to a time."""

    time = serializers.DateTimeField(help_text="End of an hour, ISO 8601 in UTC.")
    spent = serializers.IntegerField(help_text="Spent from the period's start to this time, in the budget's unit.")


class BudgetLineSerializer(serializers.Serializer[Any]):
    """What one job spent and reserved."""

    team = NamedSerializer(help_text="Team of the job.")
    job_id = serializers.CharField(help_text="Id of the job.")
    spent = serializers.IntegerField(help_text="Spent, in the budget's unit, without what was refunded.")
    reserved = serializers.IntegerField(help_text="Reserved, in the same unit.")
    refunded = serializers.IntegerField(help_text="Refunded because the infrastructure failed, in the same unit.")


class OthersSerializer(serializers.Serializer[Any]):
    """What all other jobs spent and reserved."""

    spent = serializers.IntegerField(help_text="Spent, in the budget's unit.")
    reserved = serializers.IntegerField(help_text="Reserved, in the same unit.")


class BudgetStatementSerializer(serializers.Serializer[Any]):
    """A period of a budget, job by job."""

    period = BudgetPeriodSerializer(help_text="The period.")
    lines = BudgetLineSerializer(many=True, help_text="One line per job, most expensive first, at most 1000.")
    others = OthersSerializer(
        help_text="Sum of what `lines` does not contain: jobs of other teams, and jobs beyond the first 1000."
    )
    burn_down = BurnPointSerializer(
        many=True, help_text="Spending over time, with a point for each hour in which something was spent."
    )
