"""Uploads of files in one request of any size: a tar archive read as it arrives, and the answer of a repeated one."""

import hashlib
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rest_framework.request import Request
from rest_framework.response import Response

from athanor.accounts import idempotency
from athanor.api.bodies import open_body
from athanor.api.idempotency import build_answer, build_keyed_request, build_replay, read_key
from athanor.artifacts.uploads import NewFile
from athanor.core.errors import Conflict, Invalid

TAR = "application/x-tar"
READ_BYTES = 1024 * 1024
Refuse = Callable[[str], Invalid]
Row = TypeVar("Row")


def members(request: Request, form: str, refuse: Refuse) -> Iterator[NewFile]:
    """Yield the files of a body that is a tar archive, read once from beginning to end. Nothing is unpacked to disk.

    Raise what `refuse` makes of a problem for what is no complete tar of ordinary files. The view has a RawParser.
    `form`: the format of the files.
    """
    try:
        with tarfile.open(fileobj=open_body(request), mode="r|", bufsize=READ_BYTES) as archive:
            for member in archive:
                if member.isdir():
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise refuse(f"{member.name} is no ordinary file; send its content")
                yield NewFile(member.name, form, _member_blocks(content, refuse))
    except tarfile.TarError as error:
        raise _no_tar(error, refuse) from error


def blocks(content: Any) -> Iterator[bytes]:
    """Yield the content of a file block by block."""
    while block := content.read(READ_BYTES):
        yield block


def upload_once(
    request: Request,
    files: Iterable[NewFile],
    upload: Callable[[Iterable[NewFile], Callable[[Row], None]], Row],
    answer_of: Callable[[Row], Response],
) -> Response:
    """Upload files, or return the answer of the upload that this request repeats, by its Idempotency-Key.

    An upload takes as long as its sender and the object store do, so it holds no transaction: its row and the record
    of its answer are written together at its end, by the function that `upload` gets. Of two at a time, the later finds
    what the first has written, deletes what it has stored, and gets its answer.
    """
    key = read_key(request)
    if key is None:
        return answer_of(upload(files, lambda _: None))
    fingerprint = _Fingerprint()
    hashed = fingerprint.over(files)

    def record(row: Row) -> None:
        digest = fingerprint.of_rest(hashed)
        idempotency.store(build_keyed_request(request, key, digest), build_answer(answer_of(row)))

    if not idempotency.has_answer(build_keyed_request(request, key, "")):
        try:
            return answer_of(upload(hashed, record))
        except Conflict:
            if not idempotency.has_answer(build_keyed_request(request, key, "")):
                raise
    answer = idempotency.find(build_keyed_request(request, key, fingerprint.of_rest(hashed)))
    if answer is None:
        detail = f"the answer of the request with the Idempotency-Key {key!r} has expired"
        raise Conflict("answer_expired", detail, remedy="send the request again with a new key")
    return build_replay(answer)


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


def _member_blocks(content: Any, refuse: Refuse) -> Iterator[bytes]:
    try:
        yield from blocks(content)
    except tarfile.TarError as error:
        raise _no_tar(error, refuse) from error


def _no_tar(error: tarfile.TarError, refuse: Refuse) -> Invalid:
    return refuse(f"the body is no whole tar: {error}")
