"""/admin: what platform administrators watch and mend. Shows ids of other teams' jobs, and nothing else of them."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, principal
from athanor.api.bodies import RequestSerializer, read
from athanor.api.pagination import listed, serialize_many
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.backends.base import Presence
from athanor.core import tenancy
from athanor.jobs.models import Attempt
from athanor.operations import orphans, sweepers


class SweeperSerializer(serializers.Serializer[sweepers.State]):
    name = serializers.CharField(source="sweeper.task")
    invariant = serializers.CharField(source="sweeper.invariant")
    every_seconds = serializers.FloatField(source="sweeper.seconds")
    rows_due = serializers.IntegerField()
    oldest_due_seconds = serializers.FloatField(allow_null=True)
    ran_at = serializers.DateTimeField(allow_null=True)
    took_seconds = serializers.FloatField(allow_null=True)
    failed_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(allow_blank=True)
    late = serializers.BooleanField(help_text="it has not run for five of its periods")
    rows_failing = serializers.IntegerField(
        help_text="Number of rows whose last try failed unexpectedly; each is retried after a growing pause."
    )
    rows_given_up = serializers.IntegerField(
        help_text="Number of rows given up within the last 7 days after 12 unexpected failures in a row each. A job "
        "among them has failed with `platform_error` and has a `job.abandon` record in the audit trail."
    )


class LostObjectSerializer(serializers.Serializer[orphans.LostObject]):
    cluster_id = serializers.CharField(source="cluster.id")
    cluster = serializers.CharField(source="cluster.name")
    backend_name = serializers.CharField()
    attempt_id = serializers.CharField(allow_blank=True)
    job_id = serializers.CharField(allow_blank=True)
    why = serializers.CharField()


class LostAttemptSerializer(serializers.Serializer[Attempt]):
    attempt_id = serializers.CharField(source="id")
    job_id = serializers.CharField()
    cluster = serializers.CharField(source="job.pool.cluster.name")
    backend_name = serializers.CharField()
    status = serializers.CharField()
    absent_count = serializers.IntegerField(help_text="how many sweeps did not find it")
    absent_since = serializers.DateTimeField(allow_null=True)


class UnlistedSerializer(serializers.Serializer[orphans.Unlisted]):
    cluster = serializers.CharField(source="cluster.name")
    why = serializers.CharField()


class OrphansSerializer(serializers.Serializer[orphans.Orphans]):
    objects = LostObjectSerializer(many=True, help_text="run on a cluster without a live attempt of ours")
    attempts = LostAttemptSerializer(many=True, help_text="live, and not found on their cluster")
    unlisted = UnlistedSerializer(many=True, help_text="clusters that could not say what they run")


class ObjectSerializer(RequestSerializer):
    cluster_id = serializers.CharField(max_length=60)
    backend_name = serializers.CharField(max_length=80)


class AttemptIdSerializer(RequestSerializer):
    attempt_id = serializers.CharField(max_length=60)


class SeenSerializer(serializers.Serializer[Any]):
    attempt_id = serializers.CharField()
    presence = serializers.ChoiceField(choices=[presence.value for presence in Presence])


class SweepersView(APIView):
    @extend_schema(
        operation_id="admin_sweepers",
        responses={200: page_of("SweeperPage", SweeperSerializer), **PROBLEMS},
        description="Every sweeper with the invariant that it keeps, and how far it is behind.",
    )
    def get(self, request: Request) -> Response:
        operator(request)
        with tenancy.unrestricted():
            return Response(listed(serialize_many(SweeperSerializer, sweepers.states())))


class OrphansView(APIView):
    @extend_schema(
        operation_id="admin_orphans",
        responses={200: OrphansSerializer, **PROBLEMS},
        description="Asks every cluster what it runs; may take as long as the slowest of them.",
    )
    def get(self, request: Request) -> Response:
        operator(request)
        with tenancy.unrestricted():
            return Response(OrphansSerializer(orphans.find()).data)


class OrphanCancelView(APIView):
    @extend_schema(
        operation_id="admin_orphan_cancel",
        request=ObjectSerializer,
        responses={202: ObjectSerializer, **PROBLEMS},
        description="Asks a cluster to end an object that no live attempt owns.",
    )
    def post(self, request: Request) -> Response:
        who = operator(request)
        asked = read(ObjectSerializer, request)
        with tenancy.unrestricted():
            orphans.cancel_object(**asked, actor=who.user)
        return Response(asked, status=202)


class OrphanObserveView(APIView):
    @extend_schema(
        operation_id="admin_orphan_observe",
        request=AttemptIdSerializer,
        responses={200: SeenSerializer, **PROBLEMS},
        description="Looks at a live attempt on its cluster, out of turn.",
    )
    def post(self, request: Request) -> Response:
        who = operator(request)
        attempt_id = read(AttemptIdSerializer, request)["attempt_id"]
        with tenancy.unrestricted():
            presence = orphans.observe_attempt(attempt_id, who.user)
        return Response({"attempt_id": attempt_id, "presence": presence.value})


def operator(request: Request) -> Principal:
    who = principal(request)
    check_platform(who, Permission.OPERATE)
    return who
