"""/prices and /series: what slots cost and what carbon their grid has, for all to read and administrators to say."""

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, principal
from athanor.api.bodies import AmountField, RequestSerializer, read
from athanor.api.etags import IF_MATCH, guard, tag_of
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import listed, serialize_many
from athanor.api.parameters import time
from athanor.api.parsers import JSONParser
from athanor.api.v1.shapes import PROBLEMS, NamedSerializer, page_of
from athanor.budgets import pricing_rules, series_fetch
from athanor.budgets import series as points
from athanor.budgets.models import PoolTerms, PriceRule, Series, SeriesPoint
from athanor.budgets.periods import seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.tariff import MICRO
from athanor.clusters.models import Pool
from athanor.core import outbound

MOST_BYTES = 8 * 2**20
MOST_POINTS = 5000
DAYS = 7
PRICE = {"max_digits": 12, "decimal_places": 6}


class CsvParser(BaseParser):
    media_type = "text/csv"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream.read(MOST_BYTES + 1).decode(errors="replace")


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


class PriceSeriesSerializer(serializers.Serializer[Any]):
    """Prices of a pool, or carbon intensity of a cluster's grid, over time."""

    id = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=Series.Kind.values, help_text="`price` of a pool, or `carbon` intensity of a cluster's grid."
    )
    pool_id = serializers.CharField(allow_null=True, help_text="Id of the pool. Null for `carbon`.")
    cluster_id = serializers.CharField(allow_null=True, help_text="Id of the cluster. Null for `price`.")
    stale_seconds = serializers.IntegerField(
        help_text="Longest time in seconds for which a point applies. It ends earlier at the next point."
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
        help_text="Longest time in seconds for which a point applies. A new series without it has 7200.",
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


class PricesView(APIView):
    @extend_schema(operation_id="prices_list", responses={200: page_of("PricePage", PriceSerializer), **PROBLEMS})
    def get(self, request: Request) -> Response:
        """List prices.

        Returns the prices of all pools of enabled clusters, by cluster and pool."""
        principal(request)
        rows = Pool.objects.filter(cluster__enabled=True).select_related("cluster").order_by("cluster__name", "name")
        return Response(listed(_shown(list(rows))))


class PoolPriceView(APIView):
    @extend_schema(
        operation_id="prices_change",
        parameters=[IF_MATCH],
        request=PriceChangeSerializer,
        responses={200: PriceSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, pool_id: str) -> Response:
        """Change the prices of a pool.

        Changes the fields that are sent; the others stay. Usage before the change keeps its old price. For platform
        administrators."""
        who = _operator(request)
        pricing_rules.pool_of(pool_id)
        unchanged: Callable[[Pool], None] = guard(request, lambda pool, tag: tag == tag_of(pricing_rules.facts(pool)))
        pool = pricing_rules.set_pricing(pool_id, who.user, unchanged, **read(PriceChangeSerializer, request))
        return _one(pool)

    @extend_schema(operation_id="prices_show", responses={200: PriceSerializer, **PROBLEMS})
    def get(self, request: Request, pool_id: str) -> Response:
        """Show the prices of a pool.

        Returns the pool's price, its rules by weekday and hour, and the price now. The response has an `ETag`."""
        principal(request)
        return _one(pricing_rules.pool_of(pool_id))


class SeriesListView(APIView):
    @extend_schema(
        operation_id="series_list", responses={200: page_of("PriceSeriesPage", PriceSeriesSerializer), **PROBLEMS}
    )
    def get(self, request: Request) -> Response:
        """List price and carbon series.

        Returns the series of prices of pools and of carbon intensity of clusters. For platform administrators."""
        _operator(request)
        return Response(listed(serialize_many(PriceSeriesSerializer, Series.objects.order_by("id"))))

    @extend_schema(
        operation_id="series_connect",
        parameters=IDEMPOTENT,
        request=NewPriceSeriesSerializer,
        responses={201: PriceSeriesSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create or change a series.

        A pool has one series of prices and a cluster one of carbon intensity. If it exists, the fields that are sent
        are changed and its points stay. With `url` it is fetched from there. For platform administrators."""
        who = _operator(request)
        wanted = read(NewPriceSeriesSerializer, request)
        if wanted.get("url"):
            outbound.check_webhook_url(wanted["url"])

        def make() -> Response:
            return Response(PriceSeriesSerializer(pricing_rules.connect(who.user, **wanted)).data, status=201)

        return once(request, make)


class SeriesView(APIView):
    @extend_schema(operation_id="series_show", responses={200: PriceSeriesSerializer, **PROBLEMS})
    def get(self, request: Request, series_id: str) -> Response:
        """Show a series.

        Returns the series and how it is fetched. For platform administrators."""
        _operator(request)
        return Response(PriceSeriesSerializer(pricing_rules.series_of(series_id)).data)

    @extend_schema(operation_id="series_remove", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, series_id: str) -> Response:
        """Remove a series.

        Removes the series with its points. For platform administrators."""
        pricing_rules.remove(series_id, _operator(request).user)
        return Response(status=204)


class SeriesFetchView(APIView):
    @extend_schema(
        operation_id="series_fetch",
        request=None,
        responses={200: PriceSeriesSerializer, **PROBLEMS},
    )
    def post(self, request: Request, series_id: str) -> Response:
        """Fetch a series now.

        Asks the provider for new points. Within 10 seconds of the last request the provider is not asked again, and
        the response is what is stored. For platform administrators."""
        who = _operator(request)
        series_fetch.fetch(pricing_rules.series_of(series_id).pk, who.user)
        return Response(PriceSeriesSerializer(pricing_rules.series_of(series_id)).data)


class SeriesPointsView(APIView):
    parser_classes = (JSONParser, CsvParser)

    @extend_schema(
        operation_id="series_points",
        parameters=[
            OpenApiParameter(
                "after",
                OpenApiTypes.DATETIME,
                description="Only points at or after this time. Without it, seven days ago.",
            ),
            OpenApiParameter("before", OpenApiTypes.DATETIME, description="Only points before this time."),
        ],
        responses={200: page_of("PriceSeriesPointPage", PriceSeriesPointSerializer), **PROBLEMS},
    )
    def get(self, request: Request, series_id: str) -> Response:
        """List the points of a series.

        Returns points, oldest first, at most 5000. Without `after`, those of the last seven days."""
        principal(request)
        row = pricing_rules.series_of(series_id)
        after = time(request, "after") or timezone.now() - timedelta(days=DAYS)
        rows = SeriesPoint.objects.filter(series=row, time__gte=after).order_by("time")
        if before := time(request, "before"):
            rows = rows.filter(time__lt=before)
        scale = points.SCALES[Series.Kind(row.kind)]
        return Response(listed([{"time": point.time, "value": point.value / scale} for point in rows[:MOST_POINTS]]))

    @extend_schema(
        operation_id="series_upload",
        request={"application/json": PriceSeriesPointSerializer(many=True), "text/csv": OpenApiTypes.STR},
        responses={200: UploadedSerializer, **PROBLEMS},
    )
    def post(self, request: Request, series_id: str) -> Response:
        """Upload points of a series.

        Takes JSON, or CSV with a time and a value per line. A point at a time that exists already replaces it. For
        platform administrators."""
        who = _operator(request)
        row = pricing_rules.series_of(series_id)
        body = request.data
        found = points.from_csv(row.kind, body) if isinstance(body, str) else points.from_json(row.kind, body)
        return Response({"points": points.upload(row, found, who.user)})


def _operator(request: Request) -> Principal:
    who = principal(request)
    check_platform(who, Permission.MANAGE_BUDGETS)
    return who


def _one(pool: Pool) -> Response:
    return Response(_shown([pool])[0], headers={"ETag": tag_of(pricing_rules.facts(pool))})


def _shown(pools: list[Pool]) -> list[Any]:
    second = seconds_of(timezone.now())
    tariffs = Tariffs(pools, second, second + 1)
    said = PoolTerms.objects.in_bulk([pool.id for pool in pools])
    rules: dict[str, list[PriceRule]] = defaultdict(list)
    for rule in PriceRule.objects.filter(pool__in=pools).order_by("pool", "position"):
        rules[rule.pool_id].append(rule)
    series = {row.pool_id or row.cluster_id: row.id for row in Series.objects.all()}
    found = []
    for pool in pools:
        of_pool = said.get(pool.id) or PoolTerms(pool=pool)
        carbon = tariffs.carbon(pool.id).at(second)
        facts = {
            "pool_id": pool.id,
            "pool": pool.name,
            "cluster": pool.cluster,
            "accelerator": pool.accelerator,
            "currency": pool.currency,
            "price_per_slot_hour": pool.price_per_slot_hour,
            "price_now": Decimal(tariffs.price(pool.id).at(second) or 0) / MICRO,
            "rules": [
                {
                    "weekdays": rule.weekdays,
                    "from_hour": rule.from_hour,
                    "to_hour": rule.to_hour,
                    "zone": rule.zone,
                    "price_per_slot_hour": Decimal(rule.price) / MICRO,
                }
                for rule in rules[pool.id]
            ],
            "spot": of_pool.spot,
            "watts_per_slot": of_pool.watts_per_slot,
            "price_series_id": series.get(pool.id),
            "carbon_series_id": series.get(pool.cluster_id),
            "grams_per_kwh_now": None if carbon is None else carbon / 1000,
        }
        found.append(PriceSerializer(facts).data)
    return found
