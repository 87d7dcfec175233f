"""The objects of a data set: files on this node, in the store, or the builtin corpus."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from trainer.contract.data import MixturePart
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import StoredFile
from trainer.contract.run import DatasetSource, EndClass
from trainer.data.documents import RawObject, builtin_stdlib, data_error
from trainer.data.prepare import Objects, divide_into_units
from trainer.errors import TrainerError
from trainer.storage.base import Storage
from trainer.storage.encrypted import decrypt_parts


def read_units(
    part: MixturePart,
    source: DatasetSource,
    storage: Storage,
    encryptor: Encryptor,
    local_files: list[Path],
    unit_bytes: int,
) -> list[Objects]:
    """Return the units of a data set, the same on all nodes. `local_files`: read these and nothing that is stored.

    Raises TrainerError (DATA_ERROR) for one without files.
    """
    if source.origin == "builtin" and part.source.startswith("builtin:") and not local_files:
        return [builtin_stdlib]
    if local_files:
        sizes = [
            path.stat().st_size if path.exists() else 0 for path in local_files
        ]  # the reader names what is missing
        return [_LocalFiles(local_files[unit]) for unit in divide_into_units(sizes, unit_bytes)]
    if not source.raw:
        raise data_error(
            f"training.data.source {part.source!r} has no files; pass them with --data in a standalone run, "
            "or upload the data set to the platform"
        )
    units = divide_into_units([file.size for file in source.raw], unit_bytes)
    return [_StoredFiles(source.raw[unit], source.origin == "sealed", storage, encryptor) for unit in units]


def until_stopped(objects: Objects, is_stopping: Callable[[], bool]) -> Objects:
    """Return the same objects; TrainerError (STOPPED) is raised in their reading once the run is to stop."""

    def watched(raw: RawObject) -> Iterator[bytes]:
        for block in raw.read():
            if is_stopping():
                raise TrainerError(EndClass.STOPPED, "stopped while reading the data")
            yield block

    return lambda: (RawObject(raw.name, partial(watched, raw)) for raw in objects())


def files_of_part(parts: list[MixturePart], number: int, local_files: list[Path]) -> list[Path]:
    """Return the local files of a part: NAME.* for the source dataset:NAME of a mixture, all for a single source.

    Those of a version, such as dataset:NAME@2, are NAME@2.*, or NAME.* if no other part is of the same data set.
    """
    if len(parts) == 1 or not local_files:
        return local_files
    names = [part.source.partition("@")[0] for part in parts]
    found = [path for path in local_files if f"dataset:{path.stem}" == parts[number].source]
    if found or names.count(names[number]) > 1:
        return found
    return [path for path in local_files if f"dataset:{path.stem}" == names[number]]


class _LocalFiles:
    """Files on this node; each call reads them from the first."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __call__(self) -> Iterable[RawObject]:
        return map(RawObject.file, self._files)


class _StoredFiles:
    """Files in the store; each call reads them from the first."""

    def __init__(self, files: list[StoredFile], is_encrypted: bool, storage: Storage, encryptor: Encryptor) -> None:
        self._files, self._is_encrypted, self._storage, self._encryptor = files, is_encrypted, storage, encryptor

    def __call__(self) -> Iterable[RawObject]:
        return map(self._object, self._files)

    def _object(self, file: StoredFile) -> RawObject:
        def read() -> Iterator[bytes]:
            if self._is_encrypted:
                yield from decrypt_parts(self._storage, self._encryptor, file)
            else:
                yield from (self._storage.get(part.key) for part in file.parts)

        return RawObject(file.path, read)
