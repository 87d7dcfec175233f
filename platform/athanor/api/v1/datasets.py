"""/datasets: text to train on, uploaded in one request of any size."""

import re
from collections.abc import Iterator
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import principal, team_to_write
from athanor.api.pagination import listed, page
from athanor.api.parsers import RawParser
from athanor.api.sparse import FIELDS, shown
from athanor.api.v1.shapes import PROBLEMS, NamedSerializer, page_of
from athanor.artifacts import datasets
from athanor.artifacts.selectors import datasets_of
from athanor.core.errors import FieldProblem, Invalid

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
FORMATS = ("text", "jsonl")
READ_BYTES = 1024 * 1024


class DatasetSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    team = NamedSerializer()
    name = serializers.CharField()
    origin = serializers.CharField()
    format = serializers.CharField()
    size_bytes = serializers.IntegerField()
    documents = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()


class DatasetsView(APIView):
    parser_classes = (MultiPartParser, RawParser)

    @extend_schema(
        operation_id="datasets_list",
        parameters=[
            OpenApiParameter("team", str),
            OpenApiParameter("limit", int),
            OpenApiParameter("cursor", str),
            FIELDS,
        ],
        responses={
            200: page_of("DatasetPage", DatasetSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> Response:
        rows = datasets_of(principal(request))
        if team := request.query_params.get("team"):
            rows = rows.filter(team__name=team)
        found, next_cursor = page(request, rows)
        return Response(listed(shown(request, DatasetSerializer, found, many=True), next_cursor))

    @extend_schema(
        operation_id="datasets_upload",
        parameters=[
            OpenApiParameter("name", str, required=True),
            OpenApiParameter("team", str),
            OpenApiParameter("format", str, enum=["auto", *FORMATS]),
        ],
        request={"text/plain": OpenApiTypes.STR, "application/jsonl": OpenApiTypes.STR},
        responses={201: DatasetSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        who = principal(request)
        team = team_to_write(who, request.query_params.get("team"))
        name = request.query_params.get("name", "")
        if not NAME.match(name):
            raise _refused("/name", f"name={name!r} is not of letters, digits, dots, dashes and underscores (1 to 100)")
        row = datasets.upload(team, who.user, name, _format(request), _body(request))
        return Response(DatasetSerializer(row).data, status=201)


def _format(request: Request) -> str:
    asked = request.query_params.get("format", "auto")
    if asked in FORMATS:
        return asked
    if asked != "auto":
        raise _refused("/format", f"format={asked!r} is none of auto, {', '.join(FORMATS)}")
    uploaded = request.FILES.get("file") if _is_form(request) else None
    named = (uploaded.name or "" if uploaded else "") + (request.content_type or "")
    return "jsonl" if "json" in named else "text"


def _is_form(request: Request) -> bool:
    return (request.content_type or "").startswith("multipart/form-data")


def _body(request: Request) -> Iterator[bytes]:
    if _is_form(request):
        uploaded = request.FILES.get("file")
        if uploaded is None:
            raise _refused("/file", "the form has no field named file")
        yield from uploaded.chunks()
        return
    while block := request.stream.read(READ_BYTES) if request.stream else b"":
        yield block


def _refused(pointer: str, detail: str) -> Invalid:
    problem = FieldProblem(pointer, "invalid", detail)
    return Invalid("invalid_dataset", detail, remedy=f"mend {pointer[1:]}", problems=(problem,))
