"""/models: the model registry of a team, its versions and aliases."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.models import User
from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal, any_team
from athanor.api.access import check, check_may_write, get_principal, team_named
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import (
    LIMIT,
    NUMBERED_PAGE_PARAMETERS,
    PAGE_PARAMETERS,
    paginate,
    paginated_response,
    read_position,
    serialize_many,
)
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.registry import (
    AliasSerializer,
    AliasTargetSerializer,
    ComparisonSerializer,
    ModelChangesSerializer,
    ModelGrantSerializer,
    ModelSerializer,
    NewModelSerializer,
    NewVersionSerializer,
    RegistryPreviewSerializer,
    VersionSerializer,
)
from athanor.artifacts import evaluations, grants, registry, selectors
from athanor.artifacts import registry_selectors as models
from athanor.artifacts.evaluations import Requirement
from athanor.artifacts.models import Artifact, RegisteredModel
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs.selectors import job_of

MAX_COMPARED = 100  # versions


class ModelsView(APIView):
    """Requests to `/models`."""

    @extend_schema(
        operation_id="models_list",
        parameters=[
            OpenApiParameter("team", str, description="Only models of the team with this name."),
            OpenApiParameter("name", str, description="Only models with this name."),
            *PAGE_PARAMETERS,
        ],
        responses={200: page_serializer("ModelPage", ModelSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List models.

        Returns the registered models of your teams and those that other teams share with them, newest first."""
        asked = request.query_params
        rows = models.models_of(get_principal(request), team=asked.get("team", ""), name=asked.get("name", ""))
        found, next_cursor = paginate(request, rows)
        return paginated_response(serialize_many(ModelSerializer, found), next_cursor)

    @extend_schema(
        operation_id="models_create",
        parameters=IDEMPOTENT,
        request=NewModelSerializer,
        responses={201: ModelSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create a model.

        Creates a model, with `artifact` or `job` together with its first version: if the export cannot be registered,
        no model is created. Needs the role member in the team."""
        principal = get_principal(request)
        asked = parse_body(request, NewModelSerializer)
        team = team_named(principal, Permission.SUBMIT, asked.pop("team", None))
        artifact_id, job_id = asked.pop("artifact", None), asked.pop("job", None)
        is_empty = artifact_id is None and job_id is None and "alias" not in asked
        first = None if is_empty else _chosen(principal, artifact_id, job_id)

        def make() -> Response:
            row = registry.create(team, principal.user, first=first, **asked)
            return Response(_shown(principal, row), status=201)

        return run_idempotently(request, make)


class ModelView(APIView):
    """Requests to `/models/{model_id}`."""

    @extend_schema(operation_id="models_show", responses={200: ModelSerializer, **PROBLEMS})
    def get(self, request: Request, model_id: str) -> Response:
        """Show a model.

        Returns a model of one of your teams, or one that is shared with them, with its card and aliases."""
        return Response(ModelSerializer(models.model_of(get_principal(request), model_id)).data)

    @extend_schema(
        operation_id="models_change", request=ModelChangesSerializer, responses={200: ModelSerializer, **PROBLEMS}
    )
    def patch(self, request: Request, model_id: str) -> Response:
        """Change a model.

        Changes the card or the tags, if they are sent. Needs the role member in the team."""
        principal = get_principal(request)
        row = registry.change(
            _writable(request, model_id), principal.user, **parse_body(request, ModelChangesSerializer)
        )
        return Response(_shown(principal, row))

    @extend_schema(operation_id="models_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, model_id: str) -> Response:
        """Delete a model.

        Deletes the model with its versions; this cannot be undone. The artifacts stay with their jobs. Refused with 409
        while the model has an alias, or while an unfinished job starts from one of its versions. Needs the role member
        in the team."""
        registry.delete(_writable(request, model_id), get_principal(request).user)
        return Response(status=204)


class ModelDeletionView(APIView):
    """Requests to `/models/{model_id}/deletion`."""

    @extend_schema(operation_id="models_deletion_preview", responses={200: RegistryPreviewSerializer, **PROBLEMS})
    def get(self, request: Request, model_id: str) -> Response:
        """Preview the deletion of a model.

        Returns the versions that deleting would remove, and the aliases and jobs that depend on them. Nothing is
        deleted."""
        row = models.own_model_of(get_principal(request), model_id)
        return Response(RegistryPreviewSerializer(registry.preview(row)).data)


class VersionsView(APIView):
    """Requests to `/models/{model_id}/versions`."""

    @extend_schema(
        operation_id="models_versions",
        parameters=NUMBERED_PAGE_PARAMETERS,
        responses={200: page_serializer("VersionPage", VersionSerializer), **PROBLEMS},
    )
    def get(self, request: Request, model_id: str) -> Response:
        """List the versions of a model.

        Returns its versions, newest first."""
        principal = get_principal(request)
        row = models.model_of(principal, model_id)
        limit = LIMIT.read(request)
        found = list(models.versions_of(principal, row, read_position(request))[: limit + 1])
        next_cursor = str(found[limit - 1].number) if len(found) > limit else None
        return paginated_response(serialize_many(VersionSerializer, found[:limit]), next_cursor)

    @extend_schema(
        operation_id="models_register",
        parameters=IDEMPOTENT,
        request=NewVersionSerializer,
        responses={200: VersionSerializer, 201: VersionSerializer, **PROBLEMS},
    )
    def post(self, request: Request, model_id: str) -> Response:
        """Register a version.

        Makes the export of a job the next version of the model, and points `alias` to it. An artifact that is a
        version of this model already is returned with 200. While it is registered, the artifact cannot be deleted.
        Needs the role member in the team."""
        principal = get_principal(request)
        model = _writable(request, model_id)
        asked = parse_body(request, NewVersionSerializer)
        artifact = _chosen(principal, asked.get("artifact"), asked.get("job"))

        def make() -> Response:
            version, is_new = registry.register(model, artifact, principal.user, asked.get("alias", ""))
            shown = VersionSerializer(models.version_of(principal, model, version.number)).data
            return Response(shown, status=201 if is_new else 200)

        return run_idempotently(request, make)


class VersionView(APIView):
    """Requests to `/models/{model_id}/versions/{version_number}`."""

    @extend_schema(operation_id="models_version_show", responses={200: VersionSerializer, **PROBLEMS})
    def get(self, request: Request, model_id: str, version_number: int) -> Response:
        """Show a version.

        Returns a version of a model. Its files are downloaded by `POST /artifacts/{artifact_id}:download`."""
        principal = get_principal(request)
        model = models.model_of(principal, model_id)
        return Response(VersionSerializer(models.version_of(principal, model, version_number)).data)

    @extend_schema(operation_id="models_version_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, model_id: str, version_number: int) -> Response:
        """Delete a version.

        Deletes the record of the version; this cannot be undone, and its number is not used again. The artifact stays
        with its job. Refused with 409 while an alias names the version, or while an unfinished job starts from it.
        Needs the role member in the team."""
        registry.delete(_writable(request, model_id), get_principal(request).user, version_number)
        return Response(status=204)


class VersionDeletionView(APIView):
    """Requests to `/models/{model_id}/versions/{version_number}/deletion`."""

    @extend_schema(
        operation_id="models_version_deletion_preview", responses={200: RegistryPreviewSerializer, **PROBLEMS}
    )
    def get(self, request: Request, model_id: str, version_number: int) -> Response:
        """Preview the deletion of a version.

        Returns the aliases and jobs that depend on the version. Nothing is deleted."""
        row = models.own_model_of(get_principal(request), model_id)
        return Response(RegistryPreviewSerializer(registry.preview(row, version_number)).data)


class EvaluationsView(APIView):
    """Requests to `/models/{model_id}/evaluations`."""

    @extend_schema(
        operation_id="models_evaluations",
        parameters=[
            OpenApiParameter(
                "against",
                str,
                description="Alias or number of the version that the others are compared with. Without it, "
                "`production` if the model has this alias.",
            )
        ],
        responses={200: ComparisonSerializer, **PROBLEMS},
    )
    def get(self, request: Request, model_id: str) -> Response:
        """Compare the evaluations of a model.

        Returns the results of its newest 100 versions, each with the difference to one version and whether it is
        significant: those by its team, of a shared model those by your teams."""
        principal = get_principal(request)
        model = models.model_of(principal, model_id)
        named = request.query_params.get("against", "")
        against = models.version_named(principal, model, named or "production", is_optional=not named)
        versions = models.versions_of(principal, model)[:MAX_COMPARED]
        return Response(ComparisonSerializer(evaluations.compare(versions, against)).data)


class GrantsView(APIView):
    """Requests to `/models/{model_id}/grants`."""

    @extend_schema(
        operation_id="models_grants",
        responses={200: page_serializer("ModelGrantPage", ModelGrantSerializer), **PROBLEMS},
    )
    def get(self, request: Request, model_id: str) -> Response:
        """List who may read a model.

        Returns the other teams that the model is shared with, by name."""
        rows = grants.grants_of(models.own_model_of(get_principal(request), model_id))
        return paginated_response(serialize_many(ModelGrantSerializer, rows))


class GrantView(APIView):
    """Requests to `/models/{model_id}/grants/{team_name}`."""

    @extend_schema(operation_id="models_grant", request=None, responses={200: ModelGrantSerializer, **PROBLEMS})
    def put(self, request: Request, model_id: str, team_name: str) -> Response:
        """Share a model with another team.

        Lets the members of the team see the model, download all its versions, also later ones, and start jobs from
        them. Safe to repeat. Recorded in the audit trail of both teams. For administrators of the model's team."""
        model, actor = _managed(request, model_id)
        return Response(ModelGrantSerializer(grants.grant(model, any_team(team_name), actor)).data)

    @extend_schema(operation_id="models_grant_end", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, model_id: str, team_name: str) -> Response:
        """Stop sharing a model with a team.

        Its members no longer see the model, and no attempt of their jobs starts from it. What they have downloaded or
        trained from it stays theirs, and an attempt that has loaded it continues. Recorded in the audit trail of both
        teams. For administrators of the model's team."""
        model, actor = _managed(request, model_id)
        grants.revoke(model, any_team(team_name), actor)
        return Response(status=204)


class AliasView(APIView):
    """Requests to `/models/{model_id}/aliases/{alias}`."""

    @extend_schema(
        operation_id="models_alias_set", request=AliasTargetSerializer, responses={200: AliasSerializer, **PROBLEMS}
    )
    def put(self, request: Request, model_id: str, alias: str) -> Response:
        """Point an alias to a version.

        Creates the alias, or moves it. With `require`, only if the stored results of the version meet every
        requirement; else it is refused with 409, with the value, n and interval, or the evaluation to run. The move is
        recorded in the audit trail and sent as the event `model.alias_moved`, both with the requirements and results.
        Safe to repeat. Needs the role member in the team."""
        model = _writable(request, model_id)
        asked = parse_body(request, AliasTargetSerializer)
        requirements = [Requirement.parse(text, place) for place, text in enumerate(asked.get("require", ()))]
        actor = get_principal(request).user
        return Response(AliasSerializer(registry.point_alias(model, alias, asked["version"], actor, requirements)).data)

    @extend_schema(operation_id="models_alias_remove", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, model_id: str, alias: str) -> Response:
        """Remove an alias.

        The version that it names stays. Sent as the event `model.alias_removed`. Needs the role member in the team."""
        registry.remove_alias(_writable(request, model_id), alias, get_principal(request).user)
        return Response(status=204)


def _writable(request: Request, model_id: str) -> RegisteredModel:
    principal = get_principal(request)
    row = models.own_model_of(principal, model_id)
    check_may_write(principal, row.team_id)
    return row


def _managed(request: Request, model_id: str) -> tuple[RegisteredModel, User]:
    principal = get_principal(request)
    row = models.own_model_of(principal, model_id)
    check(principal, Permission.MANAGE, row.team_id)
    return row, principal.user


def _chosen(principal: Principal, artifact_id: str | None, job_id: str | None) -> Artifact:
    """Return the artifact with this id, or the newest model of the job. Raises Invalid unless one of them is given."""
    if (artifact_id is None) == (job_id is None):
        detail = "give either artifact or job"
        problem = FieldProblem("/artifact", "required", detail)
        raise Invalid(
            "invalid_version", detail, remedy="name an artifact of kind model, or its job", problems=(problem,)
        )
    if artifact_id is not None:
        return selectors.artifact_of(principal, artifact_id)
    return models.export_of(job_of(principal, job_id or ""))


def _shown(principal: Principal, row: RegisteredModel) -> Any:
    return ModelSerializer(models.model_of(principal, row.id)).data
