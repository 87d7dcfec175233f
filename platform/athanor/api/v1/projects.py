"""/projects: groups of a team's jobs."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import check_may_write, get_principal, team_named
from athanor.api.bodies import parse_body
from athanor.api.etags import with_etag
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import PAGE_PARAMETERS, paginate, paginated_response
from athanor.api.sparse import FIELDS, serialize
from athanor.api.v1 import deletions
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.deletions import DeletionSerializer
from athanor.api.v1.serializers.projects import NewProjectSerializer, ProjectChangeSerializer, ProjectSerializer
from athanor.jobs import projects
from athanor.jobs.models import Project


class ProjectsView(APIView):
    """Requests to `/projects`."""

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
            *PAGE_PARAMETERS,
            FIELDS,
        ],
        responses={200: page_serializer("ProjectPage", ProjectSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List projects.

        Returns the projects of your teams, newest first, with the number of their jobs."""
        asked = request.query_params
        archived = asked["archived"] == "true" if asked.get("archived") else None
        rows = projects.projects_of(get_principal(request), team=asked.get("team", ""), archived=archived)
        found, next_cursor = paginate(request, rows)
        items = serialize(request, ProjectSerializer, projects.with_activity(found), many=True)
        return paginated_response(items, next_cursor)

    @extend_schema(
        operation_id="projects_create",
        parameters=IDEMPOTENT,
        request=NewProjectSerializer,
        responses={201: ProjectSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create a project.

        Creates a project in a team. Jobs name it in their spec. Needs the role member in the team."""
        principal = get_principal(request)
        asked = parse_body(request, NewProjectSerializer)
        team = team_named(principal, Permission.SUBMIT, asked.get("team"))

        def make() -> Response:
            row = projects.create(team, asked["name"], asked.get("description", ""), principal.user)
            return Response(_data(row), status=201)

        return run_idempotently(request, make)


class ProjectView(APIView):
    """Requests to `/projects/{project_id}`."""

    @extend_schema(operation_id="projects_show", responses={200: ProjectSerializer, **PROBLEMS})
    def get(self, request: Request, project_id: str) -> Response:
        """Show a project.

        Returns the project with the number of its jobs. The response has an `ETag`."""
        return with_etag(request, _data(projects.project_of(get_principal(request), project_id)))

    @extend_schema(
        operation_id="projects_change", request=ProjectChangeSerializer, responses={200: ProjectSerializer, **PROBLEMS}
    )
    def patch(self, request: Request, project_id: str) -> Response:
        """Change or archive a project.

        Changes the fields that are sent; the others stay. An archived project accepts no more jobs. Needs the role
        member in the team."""
        principal = get_principal(request)
        row = projects.project_of(principal, project_id)
        check_may_write(principal, row.team_id)
        asked = parse_body(request, ProjectChangeSerializer)
        return Response(_data(projects.change(row, principal.user, **asked)))

    @extend_schema(
        operation_id="projects_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: DeletionSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, project_id: str) -> Response:
        """Delete a project.

        Deletes the project and everything that its jobs stored. The jobs' records stay and the project's name
        becomes free. The deletion can be undone until the undo window ends. For administrators of the team."""
        return deletions.delete(request, "projects", project_id)


def _data(row: Project) -> Any:
    return ProjectSerializer(projects.with_activity([row])[0]).data
