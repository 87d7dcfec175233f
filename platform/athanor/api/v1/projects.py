"""/projects: what a team's jobs are kept under."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import check_may_write, principal, team_named
from athanor.api.bodies import RequestSerializer, read
from athanor.api.etags import tagged
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import PAGED, listed, page
from athanor.api.sparse import FIELDS, shown
from athanor.api.v1 import deletions
from athanor.api.v1.shapes import PROBLEMS, NamedSerializer, page_of
from athanor.jobs import projects
from athanor.jobs.models import Project


class ProjectSerializer(serializers.Serializer[Project]):
    id = serializers.CharField()
    team = NamedSerializer()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)
    created_at = serializers.DateTimeField()
    archived_at = serializers.DateTimeField(allow_null=True)
    job_count = serializers.IntegerField()
    live_job_count = serializers.IntegerField(help_text="of them not ended yet")
    last_submitted_at = serializers.DateTimeField(allow_null=True)


class NewProjectSerializer(RequestSerializer):
    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    team = serializers.CharField(required=False)
    description = serializers.CharField(required=False, allow_blank=True, max_length=2000)


class ProjectChangeSerializer(RequestSerializer):
    description = serializers.CharField(required=False, allow_blank=True, max_length=2000)
    archived = serializers.BooleanField(required=False, help_text="an archived project takes no more jobs")


class ProjectsView(APIView):
    @extend_schema(
        operation_id="projects_list",
        parameters=[
            OpenApiParameter("team", str),
            OpenApiParameter("archived", str, enum=["true", "false"], description="only those; both without it"),
            *PAGED,
            FIELDS,
        ],
        responses={200: page_of("ProjectPage", ProjectSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        rows = projects.projects_of(principal(request))
        if team := request.query_params.get("team"):
            rows = rows.filter(team__name=team)
        if archived := request.query_params.get("archived"):
            rows = rows.filter(archived_at__isnull=archived == "false")
        found, next_cursor = page(request, rows)
        items = shown(request, ProjectSerializer, projects.with_activity(found), many=True)
        return Response(listed(items, next_cursor))

    @extend_schema(
        operation_id="projects_create",
        parameters=IDEMPOTENT,
        request=NewProjectSerializer,
        responses={201: ProjectSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        who = principal(request)
        asked = read(NewProjectSerializer, request)
        team = team_named(who, Permission.SUBMIT, asked.get("team"))

        def make() -> Response:
            row = projects.create(team, asked["name"], asked.get("description", ""), who.user)
            return Response(_data(row), status=201)

        return once(request, make)


class ProjectView(APIView):
    @extend_schema(operation_id="projects_show", responses={200: ProjectSerializer, **PROBLEMS})
    def get(self, request: Request, project_id: str) -> Response:
        return tagged(request, _data(projects.project_of(principal(request), project_id)))

    @extend_schema(
        operation_id="projects_change", request=ProjectChangeSerializer, responses={200: ProjectSerializer, **PROBLEMS}
    )
    def patch(self, request: Request, project_id: str) -> Response:
        who = principal(request)
        row = projects.project_of(who, project_id)
        check_may_write(who, row.team_id)
        asked = read(ProjectChangeSerializer, request)
        return Response(_data(projects.change(row, who.user, **asked)))

    @extend_schema(
        operation_id="projects_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: deletions.DeletionSerializer, **PROBLEMS},
        description="Also deletes all that its jobs stored; for administrators of the team. The name is free again.",
    )
    def delete(self, request: Request, project_id: str) -> Response:
        return deletions.delete(request, "projects", project_id)


def _data(row: Project) -> Any:
    return ProjectSerializer(projects.with_activity([row])[0]).data
