"""The bare alternative to POST /jobs: one Django view that stores the same spec as one row, and nothing else.

Served as ours is: uvicorn, the view as WSGI in threads, a pool of connections. `python -m tests.bench.bare_django`
makes its table; uvicorn serves `application`. DATABASE_URL says where.
"""

import json
import os
import uuid
from typing import Any

import dj_database_url
import django
from a2wsgi import WSGIMiddleware
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, models
from django.http import HttpRequest, JsonResponse
from django.urls import path

THREADS = 16

if not settings.configured:
    database = dj_database_url.parse(os.environ["DATABASE_URL"])
    database["OPTIONS"] = {**database.get("OPTIONS", {}), "pool": {"min_size": 1, "max_size": THREADS}}
    settings.configure(
        DATABASES={"default": database},
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="bench",
        USE_TZ=True,
    )
    django.setup()


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


def submit(request: HttpRequest) -> JsonResponse:
    spec: dict[str, Any] = json.loads(request.body)
    row = Row.objects.create(id=str(uuid.uuid4()), team="demo", name=spec["name"], status="queued", spec=spec)
    return JsonResponse({"id": row.id, "status": row.status}, status=201)


urlpatterns = [path("api/v1/jobs", submit)]
application = WSGIMiddleware(get_wsgi_application(), workers=THREADS)


def make_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {Row._meta.db_table}")
    with connection.schema_editor() as editor:
        editor.create_model(Row)


if __name__ == "__main__":
    make_table()
