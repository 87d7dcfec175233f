"""/datasets: text to train on, uploaded in one request of any size: a file, a form, or a tar of files."""

import hashlib
import re
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import idempotency
from athanor.accounts.models import Team, User
from athanor.api.access import check_may_write, get_principal, team_to_write
from athanor.api.bodies import open_body, read_upload
from athanor.api.idempotency import IDEMPOTENT, build_answer, build_keyed_request, build_replay, read_key
from athanor.api.pagination import PAGE_PARAMETERS, paginate, paginated_response
from athanor.api.parsers import RawParser
from athanor.api.sparse import FIELDS, serialize
from athanor.api.transfers import transfer
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.datasets import DatasetSerializer, ForgottenSerializer
from athanor.artifacts import uploads
from athanor.artifacts.datasets import forget_preparations
from athanor.artifacts.models import Dataset
from athanor.artifacts.selectors import dataset_of, datasets_of
from athanor.artifacts.uploads import FORMATS, SUFFIXES, NewFile, format_of
from athanor.core.errors import Conflict, FieldProblem, Invalid

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
TAR = "application/x-tar"
READ_BYTES = 1024 * 1024


class DatasetsView(APIView):
    """Requests to `/datasets`."""

    parser_classes = (MultiPartParser, RawParser)

    @extend_schema(
        operation_id="datasets_list",
        parameters=[
            OpenApiParameter("team", str, description="Only data sets of the team with this name."),
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
        rows = datasets_of(get_principal(request), team=request.query_params.get("team", ""))
        found, next_cursor = paginate(request, rows)
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
                description="Format of every file. With `auto`, or without it, it follows from the Content-Type or the "
                "names of the files.",
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
        stored. Needs the role member in the team."""
        principal = get_principal(request)
        team = team_to_write(principal, request.query_params.get("team"))
        name = request.query_params.get("name", "")
        if not NAME.match(name):
            raise _refused("/name", f"name={name!r} is not of letters, digits, dots, dashes and underscores (1 to 100)")
        files = _files(request, _format(request))
        key = read_key(request)
        with transfer(principal.user):
            if key is None:
                return _created(uploads.upload(team, principal.user, name, files))
            return _uploaded_once(request, key, team, principal.user, name, files)


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
        principal = get_principal(request)
        row = dataset_of(principal, dataset_id)
        check_may_write(principal, row.team_id)
        return Response({"forgotten": forget_preparations(row, principal.user.username)})


class _Fingerprint:
    """The digest of an upload's files, computed as they are read."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def over(self, files: Iterable[NewFile]) -> Iterator[NewFile]:
        for file in files:
            self._hash.update(f"\n{file.format} {file.name}\n".encode(errors="surrogateescape"))
            yield NewFile(file.name, file.format, self._read(file.chunks))

    def _read(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._hash.update(chunk)
            yield chunk

    def of_rest(self, files: Iterable[NewFile]) -> str:
        """Read the files that are not read yet. Return the digest of all."""
        for file in files:
            for _ in file.chunks:
                pass
        return self._hash.hexdigest()


def _uploaded_once(request: Request, key: str, team: Team, user: User, name: str, files: Iterable[NewFile]) -> Response:
    """Upload, or return the answer of the upload that this request repeats.

    An upload takes as long as its sender and the object store do, so it holds no transaction: its row and the record
    of its answer are written together at its end. Of two at a time the later finds the row of the first, deletes what
    it has stored, and gets its answer.
    """
    fingerprint = _Fingerprint()
    hashed = fingerprint.over(files)

    def record(row: Dataset) -> None:
        idempotency.store(build_keyed_request(request, key, fingerprint.of_rest(hashed)), build_answer(_created(row)))

    if not idempotency.has_answer(build_keyed_request(request, key, "")):
        try:
            return _created(uploads.upload(team, user, name, hashed, record))
        except Conflict:
            if not idempotency.has_answer(build_keyed_request(request, key, "")):
                raise
    answer = idempotency.find(build_keyed_request(request, key, fingerprint.of_rest(hashed)))
    if answer is None:  # it expired meanwhile
        raise Conflict("dataset_exists", f"the team has a data set {name!r}", remedy="choose another name")
    return build_replay(answer)


def _created(row: Dataset) -> Response:
    return Response(DatasetSerializer(row).data, status=201)


def _format(request: Request) -> str:
    asked = request.query_params.get("format", "auto")
    if asked not in (*FORMATS, "auto"):
        raise _refused("/format", f"format={asked!r} is none of auto, {', '.join(FORMATS)}")
    return asked


def _files(request: Request, asked: str) -> Iterator[NewFile]:
    content_type = (request.content_type or "").partition(";")[0].strip()
    if content_type == TAR:
        yield from _members(request, asked)
    elif content_type == "multipart/form-data":
        uploaded = read_upload(request, "file")
        if uploaded is None:
            raise _refused("/file", "the form has no field named file")
        named = uploaded.name or "data"
        yield NewFile(named, format_of(named) if asked == "auto" else asked, uploaded.chunks())
    else:
        found = next((form for form in ("jsonl", "parquet") if form.removesuffix("l") in content_type), "text")
        form = found if asked == "auto" else asked
        yield NewFile(f"data{SUFFIXES[form][0]}", form, _body(request))


def _body(request: Request) -> Iterator[bytes]:
    body = open_body(request)
    if body is not None:
        yield from _blocks(body)


def _blocks(content: Any) -> Iterator[bytes]:
    while block := content.read(READ_BYTES):
        yield block


def _members(request: Request, asked: str) -> Iterator[NewFile]:
    """Yield the files of a tar archive, read once from beginning to end. Nothing is unpacked to disk."""
    try:
        with tarfile.open(fileobj=open_body(request), mode="r|", bufsize=READ_BYTES) as archive:
            for member in archive:
                if member.isdir():
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise _refused("/file", f"{member.name} is no ordinary file; send its content")
                form = format_of(member.name) if asked == "auto" else asked
                yield NewFile(member.name, form, _member_blocks(content))
    except tarfile.TarError as error:
        raise _no_tar(error) from error


def _member_blocks(content: Any) -> Iterator[bytes]:
    try:
        yield from _blocks(content)
    except tarfile.TarError as error:
        raise _no_tar(error) from error


def _no_tar(error: tarfile.TarError) -> Invalid:
    return _refused("/file", f"the body is no whole tar: {error}")


def _refused(pointer: str, detail: str) -> Invalid:
    problem = FieldProblem(pointer, "invalid", detail)
    return Invalid("invalid_dataset", detail, remedy=f"fix {pointer[1:]}", problems=(problem,))
