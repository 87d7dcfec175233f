"""Serializers of the monthly report by team."""

from collections.abc import Iterator
from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import ReasonSerializer, enum_values
from athanor.api.v1.serializers.efficiency import EnergySerializer, serialize_energy
from athanor.api.v1.serializers.goodput import GoodputAmountSerializer
from athanor.budgets.goodput_statement import Amount
from athanor.jobs.goodput import PRODUCTIVE
from athanor.jobs.reasons import explain
from athanor.jobs.timeline import Activity
from athanor.telemetry.usage_report import TeamMonth

UNPRODUCTIVE = [activity for activity in Activity if activity not in PRODUCTIVE]
HEADING = [
    "team", "currency", "slot_seconds", "cost", "charged", "productive_slot_seconds", "productive_cost",
    *(f"{activity.value}_{name}" for activity in UNPRODUCTIVE for name in ("slot_seconds", "cost")),
    "uncounted_slot_seconds", "uncounted_cost", "fault_slot_seconds", "fault_cost", "kwh", "energy_source",
    "energy_unknown_slot_seconds", "carbon_grams", "carbon_slot_seconds",
]  # fmt: skip


class UnproductiveSerializer(serializers.Serializer[Any]):
    """Slot time that was neither training nor preparation, of one activity and cause."""

    activity = serializers.ChoiceField(
        choices=enum_values(UNPRODUCTIVE), help_text="What the slots were held for, as in `GET /goodput`."
    )
    reason = ReasonSerializer(
        allow_null=True, help_text="The interruption that caused it. Null if none did, or if its reason is not known."
    )
    slot_seconds = serializers.IntegerField(help_text="Slot-seconds.")
    cost = serializers.IntegerField(help_text="Cost in millionths of the currency.")


class TeamMonthSerializer(serializers.Serializer[Any]):
    """The usage of a team in one currency.

    `productive`, `unproductive` and `uncounted` sum to `slot_seconds` and `cost`."""

    team = serializers.CharField(help_text="Name of the team.")
    currency = serializers.CharField(help_text="Currency of the amounts, ISO 4217.")
    slot_seconds = serializers.IntegerField(help_text="Slot-seconds, as in `GET /costs`.")
    cost = serializers.IntegerField(help_text="Cost in millionths of the currency, as in `GET /costs`.")
    charged = serializers.IntegerField(help_text="`cost` without `fault_cost`.")
    fault_slot_seconds = serializers.IntegerField(help_text="Slot-seconds that infrastructure faults lost.")
    fault_cost = serializers.IntegerField(help_text="Their cost, which is not charged.")
    productive = GoodputAmountSerializer(help_text="Training and preparation.")
    unproductive = UnproductiveSerializer(many=True, help_text="The rest, by activity and cause.")
    uncounted = GoodputAmountSerializer(help_text="What is not divided yet, as of running jobs.")
    energy = EnergySerializer(help_text="Energy and carbon.")


class UsageReportSerializer(serializers.Serializer[Any]):
    """The report of a month."""

    month = serializers.CharField(help_text="The month in UTC, YYYY-MM.")
    items = TeamMonthSerializer(many=True, help_text="One for each team and currency with usage, by name.")


def serialize_month(found: TeamMonth) -> dict[str, Any]:
    """Return the month of a team as TeamMonthSerializer describes it."""
    return {
        "team": found.team,
        "currency": found.currency,
        **_amount(found.total),
        "charged": found.total.cost - found.faults.cost,
        "fault_slot_seconds": found.faults.slot_seconds,
        "fault_cost": found.faults.cost,
        "productive": _amount(found.productive),
        "unproductive": [
            {"activity": activity.value, "reason": explain(cause or ""), **_amount(amount)}
            for (activity, cause), amount in found.unproductive.items()
        ],
        "uncounted": _amount(found.uncounted),
        "energy": serialize_energy(found.energy),
    }


def _amount(amount: Amount) -> dict[str, int]:
    return {"slot_seconds": amount.slot_seconds, "cost": amount.cost}


def csv_rows(months: list[TeamMonth]) -> Iterator[list[Any]]:
    """Yield a row of HEADING for each month of a team. What is not known is empty."""
    for each in months:
        row, energy = serialize_month(each), serialize_energy(each.energy)
        flat = {**row, **{name: energy[name] for name in ("kwh", "carbon_grams", "carbon_slot_seconds")}}
        flat |= {"energy_source": energy["source"], "energy_unknown_slot_seconds": energy["unknown_slot_seconds"]}
        amounts = {"productive": each.productive, "uncounted": each.uncounted}
        amounts |= {activity.value: each.unproductive_in(activity) for activity in UNPRODUCTIVE}
        for name, amount in amounts.items():
            flat |= {f"{name}_slot_seconds": amount.slot_seconds, f"{name}_cost": amount.cost}
        yield [flat[name] for name in HEADING]
