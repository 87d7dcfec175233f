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
    """A group of a team's jobs."""

    id = serializers.CharField()
    team = NamedSerializer()
    name = serializers.CharField(help_text="Name within the team. Jobs name the project by it.")
    description = serializers.CharField(allow_blank=True, help_text="What the project is about. May be empty.")
    created_by = serializers.CharField(
        source="created_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the person or service account that created it. Null if it is not known.",
    )
    created_at = serializers.DateTimeField()
    archived_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was archived, ISO 8601 in UTC. Null if it accepts jobs."
    )
    job_count = serializers.IntegerField(help_text="Number of its jobs.")
    live_job_count = serializers.IntegerField(help_text="Number of its jobs that have not ended.")
    last_submitted_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the newest submission, ISO 8601 in UTC. Null without a job."
    )


class NewProjectSerializer(RequestSerializer):
    """A project to create."""

    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, help_text="Name within the team.")
    team = serializers.CharField(
        required=False, help_text="Name or id of the team. May be left out if you belong to one team only."
    )
    description = serializers.CharField(
        required=False, allow_blank=True, max_length=2000, help_text="What the project is about."
    )


class ProjectChangeSerializer(RequestSerializer):
    """Changes of a project."""

    description = serializers.CharField(
        required=False, allow_blank=True, max_length=2000, help_text="What the project is about."
    )
    archived = serializers.BooleanField(
        required=False, help_text="Whether the project is archived and accepts no more jobs."
    )


class ProjectsView(APIView):
    @extend_schema(
        operation_id="projects_list",
        parameters=[
            OpenApiParameter("team", str, description="Only projects of the team with this name."),
            OpenApiParameter(
                "archived",
                str,
                enum=["true", "false"],
                description="Only archived projects, or only others. Without it, both.",
            ),
            *PAGED,
            FIELDS,
        ],
        responses={200: page_of("ProjectPage", ProjectSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List projects.

        Returns the projects of your teams, newest first, with the number of their jobs."""
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
        """Create a project.

        Creates a project in a team. Jobs name it in their spec. Needs the role member in the team."""
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
        """Show a project.

        Returns the project with the number of its jobs. The response has an `ETag`."""
        return tagged(request, _data(projects.project_of(principal(request), project_id)))

    @extend_schema(
        operation_id="projects_change", request=ProjectChangeSerializer, responses={200: ProjectSerializer, **PROBLEMS}
    )
    def patch(self, request: Request, project_id: str) -> Response:
        """Change or archive a project.

        Changes the fields that are sent; the others stay. An archived project accepts no more jobs. Needs the role
        member in the team."""
        who = principal(request)
        row = projects.project_of(who, project_id)
        check_may_write(who, row.team_id)
        asked = read(ProjectChangeSerializer, request)
        return Response(_data(projects.change(row, who.user, **asked)))

    @extend_schema(
        operation_id="projects_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: deletions.DeletionSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, project_id: str) -> Response:
        """Delete a project.

        Deletes the project and everything that its jobs stored. The jobs' records stay and the project's name
        becomes free. The deletion can be undone until the undo window ends. For administrators of the team."""
        return deletions.delete(request, "projects", project_id)


def _data(row: Project) -> Any:
    return ProjectSerializer(projects.with_activity([row])[0]).data
