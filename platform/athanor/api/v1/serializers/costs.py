"""Serializers of costs."""

from typing import Any

from rest_framework import serializers


class CostSumsSerializer(serializers.Serializer[Any]):
    """Sums in one currency."""

    currency = serializers.CharField(help_text="Currency of the amounts, ISO 4217.")
    slot_seconds = serializers.IntegerField(help_text="Slot-seconds that were used.")
    cost = serializers.IntegerField(
        help_text="Cost in millionths of the currency, including what was lost to infrastructure faults."
    )
    charged = serializers.IntegerField(help_text="`cost` without `fault_cost`.")
    fault_slot_seconds = serializers.IntegerField(help_text="Slot-seconds that were lost to infrastructure faults.")
    fault_cost = serializers.IntegerField(help_text="Cost of those, in millionths of the currency. It is not charged.")
    saved_cost = serializers.IntegerField(
        help_text=(
            "What waiting for a price below a ceiling saved, in millionths of the currency. Below zero if it cost more."
        )
    )
    milligrams = serializers.IntegerField(
        help_text=(
            "Carbon dioxide in milligrams, of pools of which power per slot and carbon intensity are known. 0 if they "
            "are not known of any."
        )
    )
    saved_milligrams = serializers.IntegerField(
        help_text="Carbon dioxide in milligrams that waiting for a ceiling saved. Below zero if it caused more."
    )


class CostRowSerializer(CostSumsSerializer):
    """Sums for one combination of the names in `by`. Names that were not requested are absent."""

    team = serializers.CharField(required=False, help_text="Name of the team. Only with `by=team`.")
    project = serializers.CharField(required=False, help_text="Name of the project. Only with `by=project`.")
    accelerator = serializers.CharField(required=False, help_text="Accelerator. Only with `by=accelerator`.")
    pool = serializers.CharField(required=False, help_text="Name of the pool. Only with `by=pool`.")
    cluster = serializers.CharField(required=False, help_text="Name of the cluster. Only with `by=cluster`.")
    day = serializers.DateField(required=False, help_text="Day in UTC. Only with `by=day`.")
    person = serializers.CharField(
        required=False,
        allow_null=True,
        help_text=(
            "Username of who submitted the jobs. Null for teams that are not yours, and for usage that an earlier "
            "version did not store by job. Only with `by=person`."
        ),
    )
    job = serializers.CharField(
        required=False, allow_null=True, help_text="Id of the job. Null as for `person`. Only with `by=job`."
    )
    job_name = serializers.CharField(
        required=False, allow_null=True, help_text="Name of the job. Null as for `person`. Only with `by=job`."
    )


class CostRestSerializer(CostSumsSerializer):
    """Sums of the combinations that are not listed, in one currency."""

    groups = serializers.IntegerField(help_text="Number of those combinations.")


class JobCostSerializer(serializers.Serializer[Any]):
    """Usage and cost of a job."""

    currency = serializers.CharField(help_text="Currency of the amounts, ISO 4217.")
    slot_seconds = serializers.IntegerField(help_text="Slot-seconds that were used.")
    cost = serializers.IntegerField(
        help_text="Cost in millionths of the currency, including what was lost to infrastructure faults."
    )
    charged = serializers.IntegerField(help_text="`cost` without `fault_cost`.")
    fault_slot_seconds = serializers.IntegerField(help_text="Slot-seconds that were lost to infrastructure faults.")
    fault_cost = serializers.IntegerField(help_text="Cost of those, in millionths of the currency. It is not charged.")
    milligrams = serializers.IntegerField(
        help_text=(
            "Carbon dioxide in milligrams. 0 as long as the pool's power per slot or the carbon intensity is not known."
        )
    )
    has_ceiling = serializers.BooleanField(
        help_text="Whether the job has a ceiling of price or carbon, without which nothing is saved."
    )
    saved_cost = serializers.IntegerField(
        help_text=(
            "What waiting for a price below the ceiling saved in ended attempts, in millionths of the "
            "currency. Below zero if it cost more."
        )
    )
    saved_milligrams = serializers.IntegerField(
        help_text=("Carbon dioxide in milligrams that waiting saved in ended attempts. Below zero if it caused more.")
    )


class CostsSerializer(serializers.Serializer[Any]):
    """Usage and cost of a time range."""

    after = serializers.DateTimeField(help_text="Begin of the range, ISO 8601 in UTC.")
    before = serializers.DateTimeField(help_text="End of the range, ISO 8601 in UTC.")
    items = CostRowSerializer(
        many=True,
        help_text=(
            "One row for each combination of the names in `by` and each currency. With a person or job the 500 most "
            "expensive."
        ),
    )
    rest = CostRestSerializer(
        many=True, help_text="Sums of the combinations that are not in `items`, by currency. Empty if all are."
    )
