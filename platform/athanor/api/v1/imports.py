"""/models:import: a folder in Hugging Face's layout, uploaded in one request of any size, as a version of a model."""

from collections.abc import Callable, Iterable, Iterator

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal, team_to_write
from athanor.api.file_uploads import TAR, members, upload_once
from athanor.api.idempotency import IDEMPOTENT
from athanor.api.parsers import RawParser
from athanor.api.transfers import transfer
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.registry import DestinationSerializer, VersionSerializer
from athanor.artifacts import imports
from athanor.artifacts import registry_selectors as models
from athanor.artifacts.imports import Destination
from athanor.artifacts.models import ModelVersion
from athanor.artifacts.uploads import NewFile
from athanor.core.errors import FieldProblem, Invalid
from athanor.specs.v1 import ALIAS_PATTERN, NAME_PATTERN


class ImportView(APIView):
    """Requests to `/models:import`."""

    parser_classes = (RawParser,)

    @extend_schema(
        operation_id="models_import",
        parameters=[
            OpenApiParameter(
                "name",
                {"type": "string", "pattern": NAME_PATTERN},
                required=True,
                description="Name of the model. It is created if the team has none of this name.",
            ),
            OpenApiParameter(
                "team", str, description="Name or id of the team. May be left out if you belong to one team only."
            ),
            OpenApiParameter(
                "alias",
                {"type": "string", "pattern": ALIAS_PATTERN},
                description="Alias to point to the version, such as `candidate`.",
            ),
            OpenApiParameter("tag", str, many=True, description="Tag to add to the model. Repeatable."),
            *IDEMPOTENT,
        ],
        request={TAR: OpenApiTypes.BINARY},
        responses={201: VersionSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Import a model.

        Stores the body, which is streamed and may be of any size up to the team's storage limit: a tar archive of the
        files of one folder in Hugging Face's layout, with `config.json` and safetensors. The content is encrypted
        before it is stored, and becomes the next version of the model when all of it has arrived and was checked;
        until then nothing is registered. Each request without an Idempotency-Key makes a version. Needs the role
        member in the team."""
        principal = get_principal(request)
        asked = request.query_params
        team = team_to_write(principal, asked.get("team"))
        form = DestinationSerializer(
            data={"name": asked.get("name", ""), "tags": asked.getlist("tag"),
                  **({"alias": asked["alias"]} if "alias" in asked else {})}
        )  # fmt: skip
        form.is_valid(raise_exception=True)
        destination = Destination(**form.validated_data)

        def upload(sent: Iterable[NewFile], record: Callable[[ModelVersion], None]) -> ModelVersion:
            return imports.import_model(team, principal.user, destination, sent, record)

        def answer_of(made: ModelVersion) -> Response:
            model = models.model_of(principal, made.model_id)
            return Response(VersionSerializer(models.version_of(principal, model, made.number)).data, status=201)

        with transfer(principal.user):
            return upload_once(request, _files(request), upload, answer_of)


def _files(request: Request) -> Iterator[NewFile]:
    content_type = (request.content_type or "").partition(";")[0].strip()
    if content_type != TAR:
        raise _refused(f"the Content-Type is {content_type or 'missing'!r}; send a tar archive, as {TAR}")
    yield from members(request, "", _refused)


def _refused(detail: str) -> Invalid:
    problem = FieldProblem("/file", "invalid_model", detail)
    return Invalid("invalid_model", detail, remedy="send the files of the folder as a tar", problems=(problem,))
