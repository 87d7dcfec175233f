"""/datasets: text to train on, inspected, uploaded in one request of any size (a file, a form, or a tar), previewed."""

import re
from collections.abc import Callable, Iterable, Iterator

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check, check_may_write, get_principal, team_to_write
from athanor.api.bodies import open_body, read_upload
from athanor.api.file_uploads import TAR, blocks, members, upload_once
from athanor.api.idempotency import IDEMPOTENT
from athanor.api.pagination import PAGE_PARAMETERS, paginate, paginated_response
from athanor.api.parameters import IntegerParameter, read_flag, refusal
from athanor.api.parsers import RawParser
from athanor.api.sparse import FIELDS, serialize
from athanor.api.transfers import transfer
from athanor.api.v1 import deletions
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.datasets import (
    DatasetDetailSerializer,
    DatasetSerializer,
    DiffSerializer,
    ForgottenSerializer,
    InspectionSerializer,
)
from athanor.api.v1.serializers.deletions import DeletionSerializer
from athanor.artifacts import dataset_diff, dataset_versions, previews, uploads
from athanor.artifacts.datasets import forget_preparations
from athanor.artifacts.inspection import FORMATS, SAMPLE_BYTES, SUFFIXES, inspect
from athanor.artifacts.models import Dataset
from athanor.artifacts.selectors import dataset_of, datasets_of
from athanor.artifacts.uploads import NewFile
from athanor.core.errors import FieldProblem, Invalid

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
MAX_FILE_NAME = 300
ROWS = IntegerParameter("rows", "Maximum number of rows to return.", min_value=1, max_value=100, default=10)


class DatasetsView(APIView):
    """Requests to `/datasets`."""

    parser_classes = (MultiPartParser, RawParser)

    @extend_schema(
        operation_id="datasets_list",
        parameters=[
            OpenApiParameter("team", str, description="Only data sets of the team with this name."),
            OpenApiParameter("name", str, description="Only data sets with this name."),
            OpenApiParameter(
                "versions",
                str,
                enum=["newest", "all"],
                default="newest",
                description="`newest`: the newest version of each data set; `all`: all of them.",
            ),
            *PAGE_PARAMETERS,
            FIELDS,
        ],
        responses={
            200: page_serializer("DatasetPage", DatasetSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> Response:
        """List data sets.

        Returns the data sets of your teams that were not deleted, newest first."""
        asked = request.query_params
        rows = datasets_of(
            get_principal(request),
            team=asked.get("team", ""),
            name=asked.get("name", ""),
            is_newest=asked.get("versions", "newest") == "newest",
        )
        found, next_cursor = paginate(request, rows)
        previews.load_preparations(found)
        return paginated_response(serialize(request, DatasetSerializer, found, many=True), next_cursor)

    @extend_schema(
        operation_id="datasets_upload",
        parameters=[
            OpenApiParameter(
                "name",
                {"type": "string", "pattern": NAME.pattern},
                required=True,
                description="Name within the team. Jobs name the data set by it.",
            ),
            OpenApiParameter(
                "team", str, description="Name or id of the team. May be left out if you belong to one team only."
            ),
            OpenApiParameter(
                "format",
                str,
                enum=["auto", *FORMATS],
                description="Format of every file. With `auto`, or without it, it is detected from the Content-Type or "
                "the names of the files, and from their first lines.",
            ),
            OpenApiParameter(
                "text_field",
                str,
                description="Field of JSON lines, or column of parquet, with the text. Without it: detected. Specs "
                "that name no `text_field` read this one.",
            ),
            OpenApiParameter(
                "new_version",
                OpenApiTypes.BOOL,
                description="`true`: add the next version to the data set of this name. Without it a name that the "
                "team has used already is refused with 409.",
            ),
            *IDEMPOTENT,
        ],
        request={
            "text/plain": OpenApiTypes.STR,
            "application/jsonl": OpenApiTypes.STR,
            "application/vnd.apache.parquet": OpenApiTypes.BINARY,
            TAR: OpenApiTypes.BINARY,
        },
        responses={201: DatasetSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Upload a data set.

        Stores the body, which is streamed and may be of any size up to the team's storage limit: one file, a
        multipart form with the field `file`, or a tar archive of files. The content is encrypted before it is
        stored, and never changes: other content is a new version. Needs the role member in the team."""
        principal = get_principal(request)
        team = team_to_write(principal, request.query_params.get("team"))
        name = request.query_params.get("name", "")
        if not NAME.match(name):
            raise _refused("/name", f"name={name!r} is not of letters, digits, dots, dashes and underscores (1 to 100)")
        files = _files(request, _format(request))
        text_field = request.query_params.get("text_field", "")
        is_new_version = read_flag(request, "new_version")

        def upload(sent: Iterable[NewFile], record: Callable[[Dataset], None]) -> Dataset:
            return uploads.upload(
                team, principal.user, name, sent, record, text_field=text_field, is_new_version=is_new_version
            )

        with transfer(principal.user):
            return upload_once(request, files, upload, _created)


class DatasetView(APIView):
    """Requests to `/datasets/{dataset_id}`."""

    @extend_schema(operation_id="datasets_show", responses={200: DatasetDetailSerializer, **PROBLEMS})
    def get(self, request: Request, dataset_id: str) -> Response:
        """Show a data set.

        Returns the data set with its files, the digest of its content and its tokenised forms."""
        row = dataset_of(get_principal(request), dataset_id)
        previews.load_preparations([row])
        return Response(DatasetDetailSerializer(row).data)

    @extend_schema(
        operation_id="datasets_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: DeletionSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, dataset_id: str) -> Response:
        """Delete a data set.

        Deletes this version of the data set and its tokenised forms. One that an unfinished job needs, or that an alias
        names, is refused with 409. The deletion can be undone until the undo window ends. Needs the role member in the
        team, and the role admin for `permanently`."""
        return deletions.delete(request, "datasets", dataset_id)


class DatasetAliasView(APIView):
    """Requests to `/datasets/{dataset_id}/aliases/{alias}`."""

    @extend_schema(operation_id="datasets_alias_set", request=None, responses={200: DatasetSerializer, **PROBLEMS})
    def put(self, request: Request, dataset_id: str, alias: str) -> Response:
        """Point an alias to a version of a data set.

        Creates the alias, or moves it here from the version of the same data set that it names. Jobs that are submitted
        later with `dataset:NAME@ALIAS` read this version. Recorded in the audit trail. Safe to repeat. Needs the role
        member in the team."""
        principal, row = _writable(request, dataset_id)
        dataset_versions.point_alias(row, alias, principal.user)
        row = dataset_of(principal, dataset_id)
        previews.load_preparations([row])
        return Response(DatasetSerializer(row).data)

    @extend_schema(operation_id="datasets_alias_remove", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, dataset_id: str, alias: str) -> Response:
        """Remove an alias of a version of a data set.

        The version stays. Returns 404 if the alias names another version. Recorded in the audit trail. Needs the role
        member in the team."""
        principal, row = _writable(request, dataset_id)
        dataset_versions.remove_alias(row, alias, principal.user)
        return Response(status=204)


class InspectionView(APIView):
    """Requests to `/datasets:inspect`."""

    parser_classes = (RawParser,)

    @extend_schema(
        operation_id="datasets_inspect",
        parameters=[
            OpenApiParameter(
                "name",
                {"type": "string", "minLength": 1},
                required=True,
                description="Name of the file, with its extension.",
            ),
            OpenApiParameter(
                "format",
                str,
                enum=["auto", *FORMATS],
                description="Format of the file; `auto`, or without it: detected.",
            ),
            ROWS.openapi,
        ],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={200: InspectionSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Inspect a sample of a file before it is uploaded.

        Send the first 512 KiB of the file, of parquet the last. Returns the detected format, the fields that can be
        trained on, and the first rows. Nothing is stored. Returns 422 for content that an upload would refuse."""
        name = request.query_params.get("name", "")[:MAX_FILE_NAME]
        if not name:
            raise _refused("/name", "name is missing; give the name of the file, with its extension")
        body = open_body(request)
        sample = body.read(SAMPLE_BYTES + 1) if body is not None else b""
        if len(sample) > SAMPLE_BYTES:
            raise _refused("/", f"the sample is larger than {SAMPLE_BYTES} bytes")
        return Response(InspectionSerializer(inspect(name, sample, _format(request), rows=ROWS.read(request))).data)


class PreviewView(APIView):
    """Requests to `/datasets/{dataset_id}/preview`."""

    @extend_schema(
        operation_id="datasets_preview", parameters=[ROWS.openapi], responses={200: InspectionSerializer, **PROBLEMS}
    )
    def get(self, request: Request, dataset_id: str) -> Response:
        """Show the first rows of a data set.

        Decrypts the beginning of the first file. The request is recorded in the audit trail. A token needs the scope
        `artifacts`."""
        principal = get_principal(request)
        row = dataset_of(principal, dataset_id)
        check(principal, Permission.DOWNLOAD, row.team_id)
        with transfer(principal.user):
            return Response(InspectionSerializer(previews.preview(row, principal.user, ROWS.read(request))).data)


class DiffView(APIView):
    """Requests to `/datasets/{dataset_id}/diff`."""

    @extend_schema(
        operation_id="datasets_diff",
        parameters=[
            OpenApiParameter(
                "from",
                {"type": "string", "minLength": 1},
                required=True,
                description="Id of the version to compare with, as a rule an earlier one.",
            )
        ],
        responses={200: DiffSerializer, **PROBLEMS},
    )
    def get(self, request: Request, dataset_id: str) -> Response:
        """Compare a version of a data set with another version.

        Returns which files, and how many rows, only one of the two has. For this both are decrypted, if neither has
        more than 128 MiB; of larger ones names and sizes of files are compared. Rows are the lines of text and JSON
        lines, up to 250,000 different ones. The request is recorded in the audit trail. A token needs the scope
        `artifacts`."""
        principal = get_principal(request)
        after = dataset_of(principal, dataset_id)
        other = request.query_params.get("from", "")
        if not other:
            raise refusal("from", "required", "from is missing", "give the id of a version, as in from=dset_...")
        before = dataset_of(principal, other)
        for row in (before, after):
            check(principal, Permission.DOWNLOAD, row.team_id)
        with transfer(principal.user):
            return Response(DiffSerializer(dataset_diff.compare(before, after, principal.user)).data)


class PreparationsView(APIView):
    """Requests to `/datasets/{dataset_id}/preparations`."""

    @extend_schema(
        operation_id="datasets_forget_preparations",
        responses={200: ForgottenSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, dataset_id: str) -> Response:
        """Discard the tokenised forms of a data set.

        Discards every tokenised form of the data set, so that the next job that needs one tokenises it again. Jobs
        that use one already continue to use it. Needs the role member in the team."""
        principal, row = _writable(request, dataset_id)
        return Response({"forgotten": forget_preparations(row, principal.user.username)})


def _writable(request: Request, dataset_id: str) -> tuple[Principal, Dataset]:
    principal = get_principal(request)
    row = dataset_of(principal, dataset_id)
    check_may_write(principal, row.team_id)
    return principal, row


def _created(row: Dataset) -> Response:
    previews.load_preparations([row])
    return Response(DatasetSerializer(row).data, status=201)


def _format(request: Request) -> str:
    asked = request.query_params.get("format", "auto")
    if asked not in (*FORMATS, "auto"):
        raise _refused("/format", f"format={asked!r} is none of auto, {', '.join(FORMATS)}")
    return asked


def _files(request: Request, asked: str) -> Iterator[NewFile]:
    content_type = (request.content_type or "").partition(";")[0].strip()
    if content_type == TAR:
        yield from members(request, asked, lambda detail: _refused("/file", detail))
    elif content_type == "multipart/form-data":
        uploaded = read_upload(request, "file")
        if uploaded is None:
            raise _refused("/file", "the form has no field named file")
        named = uploaded.name or "data"
        yield NewFile(named, asked, uploaded.chunks())
    else:
        named = next((form for form in ("jsonl", "parquet") if form.removesuffix("l") in content_type), "text")
        yield NewFile(f"data{SUFFIXES[named][0] if asked == 'auto' else ''}", asked, _body(request))


def _body(request: Request) -> Iterator[bytes]:
    body = open_body(request)
    if body is not None:
        yield from blocks(body)


def _refused(pointer: str, detail: str) -> Invalid:
    problem = FieldProblem(pointer, "invalid", detail)
    return Invalid("invalid_dataset", detail, remedy=f"fix {pointer[1:]}", problems=(problem,))
