"""/prices and /series: prices of slots and the carbon intensity of their grid. Administrators change them."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, get_principal
from athanor.api.bodies import decode_body, parse_body
from athanor.api.etags import IF_MATCH, compute_etag, if_match_check
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.parameters import time
from athanor.api.parsers import JSONParser
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.prices import (
    NewPriceSeriesSerializer,
    PriceChangeSerializer,
    PriceSerializer,
    PriceSeriesPointSerializer,
    PriceSeriesSerializer,
    UploadedSerializer,
)
from athanor.budgets import pricing_rules, series_fetch
from athanor.budgets import series as points
from athanor.budgets.models import Series
from athanor.budgets.periods import seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.tariff import MICRO
from athanor.clusters.models import Pool
from athanor.clusters.selectors import enabled_pools
from athanor.core import outbound

MAX_CSV_BYTES = 8 * 2**20
MAX_POINTS = 5000
DAYS = 7


class CsvParser(BaseParser):
    """CSV as text."""

    media_type = "text/csv"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the first MAX_CSV_BYTES + 1 bytes of the body as text."""
        return stream.read(MAX_CSV_BYTES + 1).decode(errors="replace")


class PricesView(APIView):
    """Requests to `/prices`."""

    @extend_schema(
        operation_id="prices_list", responses={200: page_serializer("PricePage", PriceSerializer), **PROBLEMS}
    )
    def get(self, request: Request) -> Response:
        """List prices.

        Returns the prices of all pools of enabled clusters, by cluster and pool."""
        get_principal(request)
        rows = enabled_pools()
        return paginated_response(_serialize_prices(list(rows)))


class PoolPriceView(APIView):
    """Requests to `/prices/{pool_id}`."""

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
        principal = _operator(request)
        pricing_rules.pool_of(pool_id)
        unchanged: Callable[[Pool], None] = if_match_check(
            request, lambda pool, tag: tag == compute_etag(pricing_rules.facts(pool))
        )
        pool = pricing_rules.set_pricing(
            pool_id, principal.user, unchanged, **parse_body(request, PriceChangeSerializer)
        )
        return _price_response(pool)

    @extend_schema(operation_id="prices_show", responses={200: PriceSerializer, **PROBLEMS})
    def get(self, request: Request, pool_id: str) -> Response:
        """Show the prices of a pool.

        Returns the pool's price, its rules by weekday and hour, and the price now. The response has an `ETag`."""
        get_principal(request)
        return _price_response(pricing_rules.pool_of(pool_id))


class SeriesListView(APIView):
    """Requests to `/series`."""

    @extend_schema(
        operation_id="series_list",
        responses={200: page_serializer("PriceSeriesPage", PriceSeriesSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List price and carbon series.

        Returns the series of prices of pools and of carbon intensity of clusters. For platform administrators."""
        _operator(request)
        return paginated_response(serialize_many(PriceSeriesSerializer, pricing_rules.all_series()))

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
        principal = _operator(request)
        wanted = parse_body(request, NewPriceSeriesSerializer)
        if wanted.get("url"):
            outbound.check_webhook_url(wanted["url"])

        def make() -> Response:
            return Response(PriceSeriesSerializer(pricing_rules.connect(principal.user, **wanted)).data, status=201)

        return run_idempotently(request, make)


class SeriesView(APIView):
    """Requests to `/series/{series_id}`."""

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
    """Requests to `/series/{series_id}:fetch`."""

    @extend_schema(
        operation_id="series_fetch",
        request=None,
        responses={200: PriceSeriesSerializer, **PROBLEMS},
    )
    def post(self, request: Request, series_id: str) -> Response:
        """Fetch a series now.

        Asks the provider for new points. Within 10 seconds of the last request the provider is not asked again, and
        the response is what is stored. For platform administrators."""
        principal = _operator(request)
        series_fetch.fetch(pricing_rules.series_of(series_id).pk, principal.user)
        return Response(PriceSeriesSerializer(pricing_rules.series_of(series_id)).data)


class SeriesPointsView(APIView):
    """Requests to `/series/{series_id}/points`."""

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
        responses={200: page_serializer("PriceSeriesPointPage", PriceSeriesPointSerializer), **PROBLEMS},
    )
    def get(self, request: Request, series_id: str) -> Response:
        """List the points of a series.

        Returns points, oldest first, at most 5000. Without `after`, those of the last seven days."""
        get_principal(request)
        row = pricing_rules.series_of(series_id)
        after = time(request, "after") or timezone.now() - timedelta(days=DAYS)
        found = points.points_of(row, after, time(request, "before"), MAX_POINTS)
        scale = points.SCALES[Series.Kind(row.kind)]
        return paginated_response([{"time": point.time, "value": point.value / scale} for point in found])

    @extend_schema(
        operation_id="series_upload",
        request={"application/json": PriceSeriesPointSerializer(many=True), "text/csv": OpenApiTypes.STR},
        responses={200: UploadedSerializer, **PROBLEMS},
    )
    def post(self, request: Request, series_id: str) -> Response:
        """Upload points of a series.

        Takes JSON, or CSV with a time and a value per line. A point at a time that exists already replaces it. For
        platform administrators."""
        principal = _operator(request)
        row = pricing_rules.series_of(series_id)
        body = decode_body(request)
        found = points.from_csv(row.kind, body) if isinstance(body, str) else points.from_json(row.kind, body)
        return Response({"points": points.upload(row, found, principal.user)})


def _operator(request: Request) -> Principal:
    principal = get_principal(request)
    check_platform(principal, Permission.MANAGE_BUDGETS)
    return principal


def _price_response(pool: Pool) -> Response:
    return Response(_serialize_prices([pool])[0], headers={"ETag": compute_etag(pricing_rules.facts(pool))})


def _serialize_prices(pools: list[Pool]) -> list[Any]:
    second = seconds_of(timezone.now())
    tariffs = Tariffs(pools, second, second + 1)
    of_pools, rules, series = pricing_rules.pricing_of(pools), pricing_rules.rules_of(pools), pricing_rules.series_ids()
    found = []
    for pool in pools:
        of_pool = of_pools[pool.id]
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
