"""/budgets: what parts of the organisation may spend, what they did, and what is to be expected.

Amounts are whole numbers: slot-seconds, or millionths of the currency.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.models import Team
from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, principal
from athanor.api.bodies import RequestSerializer, read
from athanor.api.etags import IF_MATCH, guard
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import listed
from athanor.api.parameters import time
from athanor.api.v1.shapes import PROBLEMS, NamedSerializer, page_of
from athanor.budgets import services, statements
from athanor.budgets.models import Budget, BudgetPeriod
from athanor.core import tenancy

LARGEST = 2**53 - 1
MOST_LINES = 1000
AT = OpenApiParameter("at", OpenApiTypes.DATETIME, description="of the period that this lies in; without it, now")
CSV = {(200, "text/csv"): OpenApiTypes.STR}


class BudgetPeriodSerializer(serializers.Serializer[BudgetPeriod]):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    amount = serializers.IntegerField()
    available = serializers.IntegerField(source="allowance", help_text="neither spent nor reserved; may be below zero")
    reserved = serializers.IntegerField(
        help_text="for jobs that hold slots, up to their time limit or the period's end"
    )
    spent = serializers.IntegerField()
    lost = serializers.IntegerField(help_text="paid back, because the infrastructure failed")
    warned_at = serializers.DateTimeField(allow_null=True, help_text="when the soft part was spent")


class ForecastSerializer(serializers.Serializer[Any]):
    p50 = serializers.IntegerField(help_text="what is likely spent at the period's end")
    p90 = serializers.IntegerField(allow_null=True, help_text="null: too few days are known")
    at_present_rate = serializers.IntegerField(help_text="if what runs now goes on, and nothing else")
    exhausted_at = serializers.DateTimeField(allow_null=True, help_text="null: not in this period")


class BudgetSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    node = NamedSerializer()
    path = serializers.CharField(help_text="names down to the node, joined by slashes")
    name = serializers.CharField()
    unit = serializers.ChoiceField(choices=Budget.Unit.values)
    currency = serializers.CharField(allow_blank=True)
    accelerator = serializers.CharField(allow_blank=True, help_text="empty: all")
    period = serializers.ChoiceField(choices=Budget.Period.values)
    amount = serializers.IntegerField(help_text="slot-seconds, or millionths of the currency")
    soft_percent = serializers.IntegerField(help_text="who watches is warned when so much of it is spent")
    hard = serializers.BooleanField(help_text="nothing starts without it, and runs stop at a checkpoint")
    active = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    current = BudgetPeriodSerializer(allow_null=True)
    forecast = ForecastSerializer(allow_null=True)


class NewBudgetSerializer(RequestSerializer):
    node_id = serializers.CharField(max_length=40, help_text="of the quota tree; of a team, a group or all")
    name = serializers.CharField(max_length=100)
    unit = serializers.ChoiceField(choices=Budget.Unit.values)
    currency = serializers.RegexField(r"^[A-Z]{3}$", required=False, default="")
    accelerator = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9:._/-]*$", max_length=40, required=False, default="")
    period = serializers.ChoiceField(choices=Budget.Period.values)
    amount = serializers.IntegerField(min_value=0, max_value=LARGEST)
    soft_percent = serializers.IntegerField(min_value=1, max_value=100, required=False, default=80)
    hard = serializers.BooleanField(required=False, default=False)


class BudgetChangeSerializer(RequestSerializer):
    name = serializers.CharField(max_length=100, required=False)
    amount = serializers.IntegerField(min_value=0, max_value=LARGEST, required=False)
    soft_percent = serializers.IntegerField(min_value=1, max_value=100, required=False)
    hard = serializers.BooleanField(required=False)
    active = serializers.BooleanField(required=False, help_text="false: nothing is charged to it any more")


class BurnPointSerializer(serializers.Serializer[Any]):
    time = serializers.DateTimeField()
    spent = serializers.IntegerField(help_text="from the period's start up to then")


class BudgetLineSerializer(serializers.Serializer[Any]):
    team = NamedSerializer()
    job_id = serializers.CharField()
    spent = serializers.IntegerField()
    reserved = serializers.IntegerField()
    refunded = serializers.IntegerField(help_text="lost to the infrastructure; not in spent")


class OthersSerializer(serializers.Serializer[Any]):
    spent = serializers.IntegerField()
    reserved = serializers.IntegerField()


class BudgetStatementSerializer(serializers.Serializer[Any]):
    period = BudgetPeriodSerializer()
    lines = BudgetLineSerializer(many=True, help_text="a job each, the dearest first, a thousand at most")
    others = OthersSerializer(help_text="what is not in lines: of teams that you are not in, and beyond the thousand")
    burn_down = BurnPointSerializer(many=True)


class BudgetsView(APIView):
    @extend_schema(
        operation_id="budgets_list",
        parameters=[OpenApiParameter("active", str, enum=["true", "all"], description="true without it")],
        responses={200: page_of("BudgetPage", BudgetSerializer), **PROBLEMS},
        description="Of your teams and of the groups above them; all for platform administrators and auditors.",
    )
    def get(self, request: Request) -> Response:
        rows = services.visible_to(principal(request))
        if request.query_params.get("active") != "all":
            rows = rows.filter(active=True)
        return Response(listed(_shown(rows)))

    @extend_schema(
        operation_id="budgets_create",
        parameters=IDEMPOTENT,
        request=NewBudgetSerializer,
        responses={201: BudgetSerializer, **PROBLEMS},
        description="Jobs that run are charged to it from now on. For platform administrators.",
    )
    def post(self, request: Request) -> Response:
        who = _operator(request)
        asked = read(NewBudgetSerializer, request)

        def make() -> Response:
            row = services.create(**asked, actor=who.user)
            return _one(services.find(who, row.id), status=201)

        return once(request, make)


class BudgetView(APIView):
    @extend_schema(operation_id="budgets_show", responses={200: BudgetSerializer, **PROBLEMS})
    def get(self, request: Request, budget_id: str) -> Response:
        return _one(services.find(principal(request), budget_id))

    @extend_schema(
        operation_id="budgets_change",
        parameters=[IF_MATCH],
        request=BudgetChangeSerializer,
        responses={200: BudgetSerializer, **PROBLEMS},
        description="Another amount holds at once. When a hard one is lowered below what is given out, the newest runs "
        "stop at a checkpoint; what is spent stays spent. For platform administrators.",
    )
    def patch(self, request: Request, budget_id: str) -> Response:
        row = services.find(principal(request), budget_id)
        who = _operator(request)
        unchanged: Callable[[Budget], None] = guard(request, lambda row, tag: tag == _tag(row))
        services.change(row.id, who.user, unchanged, **read(BudgetChangeSerializer, request))
        return _one(services.find(who, row.id))


class BudgetStatementView(APIView):
    @extend_schema(
        operation_id="budgets_statement",
        parameters=[AT, OpenApiParameter("team", str, description="a team's id: only its lines")],
        responses={200: BudgetStatementSerializer, **PROBLEMS},
        description="Your teams' jobs by name; of others only the sum.",
    )
    def get(self, request: Request, budget_id: str) -> Response:
        who = principal(request)
        budget = services.find(who, budget_id)
        period = statements.period_or_refuse(budget, time(request, "at") or timezone.now())
        with _sight(who):
            lines = statements.lines(period, request.query_params.get("team", ""))[:MOST_LINES]
            names = dict(Team.objects.filter(id__in={line.team_id for line in lines}).values_list("id", "name"))
        shown = [
            {
                "team": {"id": line.team_id, "name": names.get(line.team_id, line.team_id)},
                "job_id": line.job_id,
                "spent": line.spent,
                "reserved": line.reserved,
                "refunded": line.refunded,
            }
            for line in lines
        ]
        burnt = [{"time": moment, "spent": spent} for moment, spent in statements.burn_down(period)]
        others = {
            "spent": period.spent - sum(line.spent for line in lines),
            "reserved": period.reserved - sum(line.reserved for line in lines),
        }
        data = {"period": period, "lines": shown, "others": others, "burn_down": burnt}
        return Response(BudgetStatementSerializer(data).data)


class BudgetExportView(APIView):
    @extend_schema(
        operation_id="budgets_export",
        parameters=[AT],
        responses={**CSV, **PROBLEMS},
        description="Every line of the period's ledger as CSV: your teams' and the amount's own.",
    )
    def get(self, request: Request, budget_id: str) -> StreamingHttpResponse:
        who = principal(request)
        budget = services.find(who, budget_id)
        period = statements.period_or_refuse(budget, time(request, "at") or timezone.now())

        def rows() -> Iterator[list[Any]]:
            with _sight(who):
                yield from statements.rows_of(statements.transfers(period))

        return csv_response(f"{budget.id}-{period.start:%Y-%m-%d}.csv", statements.COLUMNS, rows())


def csv_response(name: str, heading: Iterable[str], rows: Iterable[list[Any]]) -> StreamingHttpResponse:
    def lines() -> Iterator[str]:
        for values in chain([list(heading)], rows):
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerow([_harmless(value) for value in values])
            yield out.getvalue()

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _harmless(value: Any) -> Any:
    """A name that a spreadsheet would take for a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _sight(who: Principal) -> AbstractContextManager[None]:
    return tenancy.unrestricted() if services.sees_all(who) else nullcontext()


def _operator(request: Request) -> Principal:
    who = principal(request)
    check_platform(who, Permission.MANAGE_BUDGETS)
    return who


def _tag(row: Budget) -> str:
    return f'W/"{row.id}-{row.version}"'


def _one(row: Budget, status: int = 200) -> Response:
    """Its figures change by themselves: the tag is of what is said about it, and nobody is answered 304."""
    return Response(_shown([row])[0], status=status, headers={"ETag": _tag(row)})


def _shown(rows: Iterable[Budget]) -> list[Any]:
    now, found = timezone.now(), list(rows)
    paths = services.node_paths() if found else {}
    periods = {
        period.budget_id: period
        for period in BudgetPeriod.objects.filter(budget__in=found, start__lte=now, end__gt=now)
    }
    return [BudgetSerializer(_facts(row, paths[row.node_id], periods.get(row.id), now)).data for row in found]


def _facts(row: Budget, path: str, period: BudgetPeriod | None, now: datetime) -> dict[str, Any]:
    forecast = None
    if period is not None:
        made = statements.forecast_of(row, period, now)
        ends = made.exhausted_in_seconds
        forecast = {
            "p50": made.p50,
            "p90": made.p90,
            "at_present_rate": made.at_present_rate,
            "exhausted_at": None if ends is None else now + timedelta(seconds=ends),
        }
    names = ("id", "node", "name", "unit", "currency", "accelerator", "period", "amount", "soft_percent", "hard")
    facts = {name: getattr(row, name) for name in (*names, "active", "created_at")}
    return {**facts, "path": path, "current": period, "forecast": forecast}
