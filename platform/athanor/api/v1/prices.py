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
from athanor.budgets import series as points
from athanor.budgets import terms
from athanor.budgets.models import PoolTerms, PriceRule, Series, SeriesPoint
from athanor.budgets.periods import seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.tariff import MICRO
from athanor.clusters.models import Pool
from athanor.core import outbound
from athanor.operations import series as fetching

MOST_BYTES = 8 * 2**20
MOST_POINTS = 5000
DAYS = 7
PRICE = {"max_digits": 12, "decimal_places": 6}


class CsvParser(BaseParser):
    media_type = "text/csv"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream.read(MOST_BYTES + 1).decode(errors="replace")


class PriceRuleSerializer(RequestSerializer):
    weekdays = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=6), min_length=1, max_length=7, help_text="Monday is 0"
    )
    from_hour = serializers.IntegerField(min_value=0, max_value=23)
    to_hour = serializers.IntegerField(min_value=1, max_value=24, help_text="not later than from_hour: past midnight")
    zone = serializers.CharField(max_length=60, required=False, default="UTC")
    price_per_slot_hour = AmountField(**PRICE)


class PriceSerializer(serializers.Serializer[Any]):
    pool_id = serializers.CharField()
    pool = serializers.CharField()
    cluster = NamedSerializer()
    accelerator = serializers.CharField()
    currency = serializers.CharField()
    price_per_slot_hour = serializers.DecimalField(max_digits=12, decimal_places=4, help_text="when no rule holds")
    price_now = serializers.DecimalField(max_digits=18, decimal_places=6)
    rules = PriceRuleSerializer(many=True, help_text="the first that holds says the price")
    spot = serializers.BooleanField(help_text="its provider may take machines back")
    watts_per_slot = serializers.IntegerField(allow_null=True, help_text="null: its carbon is not counted")
    price_series_id = serializers.CharField(allow_null=True)
    carbon_series_id = serializers.CharField(allow_null=True)
    grams_per_kwh_now = serializers.FloatField(allow_null=True, help_text="null: not known")


class PriceChangeSerializer(RequestSerializer):
    price_per_slot_hour = AmountField(max_digits=12, decimal_places=4, required=False)
    rules = PriceRuleSerializer(many=True, required=False, help_text="all of them")
    spot = serializers.BooleanField(required=False)
    watts_per_slot = serializers.IntegerField(min_value=0, max_value=100_000, required=False, allow_null=True)


class PriceSeriesMappingSerializer(RequestSerializer):
    items = serializers.CharField(required=False, allow_blank=True, help_text="where the list is: data.points")
    time = serializers.CharField(required=False, help_text="its field with the time; time without it")
    value = serializers.CharField(required=False, help_text="its field with the value; value without it")


class PriceSeriesSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    kind = serializers.ChoiceField(choices=Series.Kind.values)
    pool_id = serializers.CharField(allow_null=True)
    cluster_id = serializers.CharField(allow_null=True)
    stale_seconds = serializers.IntegerField(help_text="a point holds up to the next one, but no longer than this")
    url = serializers.CharField(allow_blank=True)
    mapping = PriceSeriesMappingSerializer()
    fetch_seconds = serializers.IntegerField()
    fetched_at = serializers.DateTimeField(allow_null=True)
    problem = serializers.CharField(allow_blank=True, help_text="why it could not be fetched")


class NewPriceSeriesSerializer(RequestSerializer):
    kind = serializers.ChoiceField(choices=Series.Kind.values)
    pool_id = serializers.CharField(required=False, allow_blank=True, help_text="of a price")
    cluster_id = serializers.CharField(required=False, allow_blank=True, help_text="of carbon")
    stale_seconds = serializers.IntegerField(
        min_value=60, max_value=31 * 86_400, required=False, help_text="7200 of a new one"
    )
    url = serializers.CharField(max_length=2000, required=False, allow_blank=True, help_text="empty: not fetched")
    mapping = PriceSeriesMappingSerializer(required=False)
    fetch_seconds = serializers.IntegerField(
        min_value=60, max_value=86_400, required=False, help_text="3600 of a new one"
    )


class PriceSeriesPointSerializer(serializers.Serializer[Any]):
    time = serializers.DateTimeField()
    value = serializers.FloatField(help_text="the currency for a slot-hour, or grams a kWh")


class UploadedSerializer(serializers.Serializer[Any]):
    points = serializers.IntegerField()


class PricesView(APIView):
    @extend_schema(operation_id="prices_list", responses={200: page_of("PricePage", PriceSerializer), **PROBLEMS})
    def get(self, request: Request) -> Response:
        principal(request)
        rows = Pool.objects.filter(cluster__enabled=True).select_related("cluster").order_by("cluster__name", "name")
        return Response(listed(_shown(list(rows))))


class PoolPriceView(APIView):
    @extend_schema(
        operation_id="prices_change",
        parameters=[IF_MATCH],
        request=PriceChangeSerializer,
        responses={200: PriceSerializer, **PROBLEMS},
        description="What is left out stays. What ran before was counted at the old price. For administrators.",
    )
    def patch(self, request: Request, pool_id: str) -> Response:
        who = _operator(request)
        terms.pool_of(pool_id)
        unchanged: Callable[[Pool], None] = guard(request, lambda pool, tag: tag == tag_of(terms.facts(pool)))
        pool = terms.set_terms(pool_id, who.user, unchanged, **read(PriceChangeSerializer, request))
        return _one(pool)

    @extend_schema(operation_id="prices_show", responses={200: PriceSerializer, **PROBLEMS})
    def get(self, request: Request, pool_id: str) -> Response:
        principal(request)
        return _one(terms.pool_of(pool_id))


class SeriesListView(APIView):
    @extend_schema(
        operation_id="series_list", responses={200: page_of("PriceSeriesPage", PriceSeriesSerializer), **PROBLEMS}
    )
    def get(self, request: Request) -> Response:
        _operator(request)
        return Response(listed(serialize_many(PriceSeriesSerializer, Series.objects.order_by("id"))))

    @extend_schema(
        operation_id="series_connect",
        parameters=IDEMPOTENT,
        request=NewPriceSeriesSerializer,
        responses={201: PriceSeriesSerializer, **PROBLEMS},
        description="A pool has one series of prices, a cluster one of carbon: if there is one, it is changed, and its "
        "points stay, and so does what is left out. With `url` it is fetched from there.",
    )
    def post(self, request: Request) -> Response:
        who = _operator(request)
        wanted = read(NewPriceSeriesSerializer, request)
        if wanted.get("url"):
            outbound.check_webhook_url(wanted["url"])

        def make() -> Response:
            return Response(PriceSeriesSerializer(terms.connect(who.user, **wanted)).data, status=201)

        return once(request, make)


class SeriesView(APIView):
    @extend_schema(operation_id="series_show", responses={200: PriceSeriesSerializer, **PROBLEMS})
    def get(self, request: Request, series_id: str) -> Response:
        _operator(request)
        return Response(PriceSeriesSerializer(terms.series_of(series_id)).data)

    @extend_schema(operation_id="series_remove", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, series_id: str) -> Response:
        terms.remove(series_id, _operator(request).user)
        return Response(status=204)


class SeriesFetchView(APIView):
    @extend_schema(
        operation_id="series_fetch",
        request=None,
        responses={200: PriceSeriesSerializer, **PROBLEMS},
        description="Ask its provider now. Within 10 seconds of the last request the provider is not asked again; the "
        "answer is what is stored.",
    )
    def post(self, request: Request, series_id: str) -> Response:
        who = _operator(request)
        fetching.fetch(terms.series_of(series_id).pk, who.user)
        return Response(PriceSeriesSerializer(terms.series_of(series_id)).data)


class SeriesPointsView(APIView):
    parser_classes = (JSONParser, CsvParser)

    @extend_schema(
        operation_id="series_points",
        parameters=[
            OpenApiParameter("after", OpenApiTypes.DATETIME),
            OpenApiParameter("before", OpenApiTypes.DATETIME),
        ],
        responses={200: page_of("PriceSeriesPointPage", PriceSeriesPointSerializer), **PROBLEMS},
        description="Oldest first, 5000 at most; of the last seven days without `after`.",
    )
    def get(self, request: Request, series_id: str) -> Response:
        principal(request)
        row = terms.series_of(series_id)
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
        description="Points as JSON, or as CSV: a time and a value a line. One at a time that there is replaces it.",
    )
    def post(self, request: Request, series_id: str) -> Response:
        who = _operator(request)
        row = terms.series_of(series_id)
        body = request.data
        found = points.from_csv(row.kind, body) if isinstance(body, str) else points.from_json(row.kind, body)
        return Response({"points": points.upload(row, found, who.user)})


def _operator(request: Request) -> Principal:
    who = principal(request)
    check_platform(who, Permission.MANAGE_BUDGETS)
    return who


def _one(pool: Pool) -> Response:
    return Response(_shown([pool])[0], headers={"ETag": tag_of(terms.facts(pool))})


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
