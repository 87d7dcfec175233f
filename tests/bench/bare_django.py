"""The alternatives to POST /jobs, without what the platform does: one row in a Django view, and a usual API view.

`/row`: one view that stores the spec as one row, and nothing else. `/drf`: a view of Django REST framework as a team
would begin one: a token looked up by its digest, a permission, a serializer of the spec's fields, two rows (job and
event) in a transaction, and the job as the answer.

Served as ours is: uvicorn, the views as WSGI in threads, a pool of connections. `python -m tests.bench.bare_django`
makes the tables; uvicorn serves `application`. DATABASE_URL says where.
"""

import hashlib
import json
import os
import uuid
from typing import Any

import dj_database_url
import django
from a2wsgi import WSGIMiddleware
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

THREADS = 16
TOKEN = "reference"

if not settings.configured:
    database = dj_database_url.parse(os.environ["DATABASE_URL"])
    database["OPTIONS"] = {**database.get("OPTIONS", {}), "pool": {"min_size": 1, "max_size": THREADS}}
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["rest_framework"],
        REST_FRAMEWORK={
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
            "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
            "UNAUTHENTICATED_USER": None,
        },
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="bench",
        USE_TZ=True,
    )
    django.setup()

from rest_framework import serializers  # noqa: E402 - needs settings
from rest_framework.authentication import BaseAuthentication  # noqa: E402
from rest_framework.exceptions import AuthenticationFailed  # noqa: E402
from rest_framework.permissions import BasePermission  # noqa: E402
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402


class Row(models.Model):
    id = models.CharField(primary_key=True, max_length=40)
    team = models.CharField(max_length=40, db_index=True)
    name = models.CharField(max_length=100)
    status = models.CharField(max_length=12)
    spec = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "bare"
        db_table = "bench_bare_job"

    def __str__(self) -> str:
        return self.id


class Event(models.Model):
    job = models.ForeignKey(Row, on_delete=models.CASCADE)
    type = models.CharField(max_length=40)
    time = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "bare"
        db_table = "bench_bare_event"

    def __str__(self) -> str:
        return self.type


class Token(models.Model):
    digest = models.CharField(primary_key=True, max_length=64)
    username = models.CharField(max_length=40)
    team = models.CharField(max_length=40)

    class Meta:
        app_label = "bare"
        db_table = "bench_bare_token"

    def __str__(self) -> str:
        return self.username


TABLES: list[type[models.Model]] = [Row, Event, Token]


def add_row(request: HttpRequest) -> JsonResponse:
    spec: dict[str, Any] = json.loads(request.body)
    row = Row.objects.create(id=str(uuid.uuid4()), team="demo", name=spec["name"], status="queued", spec=spec)
    return JsonResponse({"id": row.id, "status": row.status}, status=201)


class TokenAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Token, None]:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        found = Token.objects.filter(digest=hashlib.sha256(token.encode()).hexdigest()).first()
        if scheme != "Bearer" or found is None:
            raise AuthenticationFailed
        return found, None


class IsMember(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return bool(request.user.team)


class ResourcesSerializer(serializers.Serializer):
    accelerator = serializers.CharField(max_length=40)
    processes_per_node = serializers.IntegerField(min_value=1)
    nodes = serializers.IntegerField(min_value=1, default=1)
    cluster = serializers.CharField(max_length=60, required=False)


class TrainingSerializer(serializers.Serializer):
    model = serializers.DictField()
    data = serializers.DictField()
    tokenizer = serializers.DictField()
    steps = serializers.IntegerField(min_value=1)
    tokens_per_step = serializers.IntegerField(min_value=1)
    sequence_length = serializers.IntegerField(min_value=1)
    schedule = serializers.DictField(default=dict)
    evaluation = serializers.DictField(default=dict)


class JobSerializer(serializers.Serializer):
    id = serializers.CharField(read_only=True)
    team = serializers.CharField(read_only=True)
    status = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    version = serializers.IntegerField(write_only=True)
    name = serializers.CharField(max_length=100)
    resources = ResourcesSerializer(write_only=True)
    training = TrainingSerializer(write_only=True)
    spec = serializers.JSONField(read_only=True)


class JobsView(APIView):
    authentication_classes = (TokenAuthentication,)
    permission_classes = (IsMember,)

    def post(self, request: Request) -> Response:
        serializer = JobSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        spec = serializer.validated_data
        with transaction.atomic():
            job = Row.objects.create(
                id=str(uuid.uuid4()), team=request.user.team, name=spec["name"], status="queued", spec=spec
            )
            Event.objects.create(job=job, type="job.submitted")
        return Response(JobSerializer(job).data, status=201)


urlpatterns = [path("row", add_row), path("drf", JobsView.as_view())]
application = WSGIMiddleware(get_wsgi_application(), workers=THREADS)


def make_tables() -> None:
    with connection.cursor() as cursor:
        for model in reversed(TABLES):
            cursor.execute(f"DROP TABLE IF EXISTS {model._meta.db_table} CASCADE")
    with connection.schema_editor() as editor:
        for model in TABLES:
            editor.create_model(model)
    Token.objects.create(digest=hashlib.sha256(TOKEN.encode()).hexdigest(), username="bench", team="demo")


if __name__ == "__main__":
    make_tables()
