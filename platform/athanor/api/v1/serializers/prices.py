"""Serializers of prices and of series of prices and carbon intensity."""

from typing import Any

from rest_framework import serializers

from athanor.api.bodies import AmountField, RequestSerializer
from athanor.api.v1.serializers.common import NamedSerializer
from athanor.budgets.models import Series

PRICE = {"max_digits": 12, "decimal_places": 6}


class PriceRuleSerializer(RequestSerializer):
    """A price for some hours of some weekdays."""

    weekdays = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=6),
        min_length=1,
        max_length=7,
        help_text="Days on which the rule applies, from 0 for Monday to 6 for Sunday.",
    )
    from_hour = serializers.IntegerField(
        min_value=0, max_value=23, help_text="Hour of the day at which it begins, in `zone`."
    )
    to_hour = serializers.IntegerField(
        min_value=1,
        max_value=24,
        help_text=(
            "Hour of the day at which it ends, in `zone`. If it is not later than `from_hour`, the rule "
            "ends on the next day."
        ),
    )
    zone = serializers.CharField(
        max_length=60, required=False, default="UTC", help_text="Time zone, such as `UTC` or `Europe/Berlin`."
    )
    price_per_slot_hour = AmountField(
        **PRICE, help_text="Price per slot-hour while the rule applies, a decimal number in the pool's currency."
    )


class PriceSerializer(serializers.Serializer[Any]):
    """The prices of a pool."""

    pool_id = serializers.CharField(help_text="Id of the pool.")
    pool = serializers.CharField(help_text="Name of the pool within its cluster.")
    cluster = NamedSerializer(help_text="Cluster of the pool.")
    accelerator = serializers.CharField(help_text="Accelerator of the pool, or `cpu`.")
    currency = serializers.CharField(help_text="Currency of the prices, ISO 4217.")
    price_per_slot_hour = serializers.DecimalField(
        max_digits=12, decimal_places=4, help_text="Price per slot-hour where no rule applies, a decimal number."
    )
    price_now = serializers.DecimalField(
        max_digits=18, decimal_places=6, help_text="Price per slot-hour now, a decimal number."
    )
    rules = PriceRuleSerializer(
        many=True, help_text="Prices by weekday and hour. The first rule that applies determines the price."
    )
    spot = serializers.BooleanField(help_text="Whether the provider may reclaim the machines.")
    watts_per_slot = serializers.IntegerField(
        allow_null=True, help_text="Power of a slot in watts. Null: carbon is not computed."
    )
    price_series_id = serializers.CharField(allow_null=True, help_text="Id of its series of prices. Null without one.")
    carbon_series_id = serializers.CharField(
        allow_null=True, help_text="Id of its cluster's series of carbon intensity. Null without one."
    )
    grams_per_kwh_now = serializers.FloatField(
        allow_null=True,
        help_text=(
            "Carbon intensity of the grid now, in grams of carbon dioxide per kilowatt-hour. Null if it is not known."
        ),
    )


class PriceChangeSerializer(RequestSerializer):
    """Changes of a pool's prices."""

    price_per_slot_hour = AmountField(
        max_digits=12,
        decimal_places=4,
        required=False,
        help_text="Price per slot-hour where no rule applies, a decimal number.",
    )
    rules = PriceRuleSerializer(
        many=True,
        required=False,
        help_text=("The complete new list of rules, at most 50. The first rule that applies determines the price."),
    )
    spot = serializers.BooleanField(required=False, help_text="Whether the provider may reclaim the machines.")
    watts_per_slot = serializers.IntegerField(
        min_value=0,
        max_value=100_000,
        required=False,
        allow_null=True,
        help_text="Power of a slot in watts. Null: carbon is not computed.",
    )


class PriceSeriesMappingSerializer(RequestSerializer):
    """Where the response of a provider has times and values."""

    items = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text=(
            "Where the provider's response has the list of points, such as `data.points`. Empty: the "
            "response is the list."
        ),
    )
    time = serializers.CharField(required=False, help_text="Field of a point with its time. `time` without it.")
    value = serializers.CharField(required=False, help_text="Field of a point with its value. `value` without it.")


class PriceSeriesSerializer(serializers.Serializer[Series]):
    """Prices of a pool, or carbon intensity of a cluster's grid, over time."""

    id = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=Series.Kind.values, help_text="`price` of a pool, or `carbon` intensity of a cluster's grid."
    )
    pool_id = serializers.CharField(allow_null=True, help_text="Id of the pool. Null for `carbon`.")
    cluster_id = serializers.CharField(allow_null=True, help_text="Id of the cluster. Null for `price`.")
    stale_seconds = serializers.IntegerField(
        help_text="Maximum time in seconds for which a point applies. It ends earlier at the next point."
    )
    url = serializers.CharField(
        allow_blank=True, help_text="Address that it is fetched from. Empty if it is not fetched."
    )
    mapping = PriceSeriesMappingSerializer(help_text="Where the provider's response has times and values.")
    fetch_seconds = serializers.IntegerField(help_text="Interval between fetches in seconds.")
    fetched_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the last successful fetch, ISO 8601 in UTC. Null before the first."
    )
    problem = serializers.CharField(allow_blank=True, help_text="Why the last fetch failed. Empty if it did not.")


class NewPriceSeriesSerializer(RequestSerializer):
    """A series to create or change."""

    kind = serializers.ChoiceField(
        choices=Series.Kind.values, help_text="`price` of a pool, or `carbon` intensity of a cluster's grid."
    )
    pool_id = serializers.CharField(required=False, allow_blank=True, help_text="Id of the pool, for `price`.")
    cluster_id = serializers.CharField(required=False, allow_blank=True, help_text="Id of the cluster, for `carbon`.")
    stale_seconds = serializers.IntegerField(
        min_value=60,
        max_value=31 * 86_400,
        required=False,
        help_text="Maximum time in seconds for which a point applies. A new series without it has 7200.",
    )
    url = serializers.CharField(
        max_length=2000,
        required=False,
        allow_blank=True,
        help_text="Address to fetch it from. With an empty one it is not fetched.",
    )
    mapping = PriceSeriesMappingSerializer(
        required=False, help_text="Where the provider's response has times and values."
    )
    fetch_seconds = serializers.IntegerField(
        min_value=60,
        max_value=86_400,
        required=False,
        help_text="Interval between fetches in seconds. A new series without it has 3600.",
    )


class PriceSeriesPointSerializer(serializers.Serializer[Any]):
    """A value of a series and the time from which it applies."""

    time = serializers.DateTimeField(help_text="Time from which the value applies, RFC 3339 with a zone.")
    value = serializers.FloatField(
        help_text="Price per slot-hour in the pool's currency, or grams of carbon dioxide per kilowatt-hour."
    )


class UploadedSerializer(serializers.Serializer[Any]):
    """Result of an upload."""

    points = serializers.IntegerField(help_text="Number of points that were stored.")
