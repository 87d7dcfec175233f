"""Gets the prepared data onto this node: from the cache, from the store, or by preparing it."""

import os
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from trainer.contract.manifest import DatasetManifest
from trainer.contract.recipe import dataset_recipe
from trainer.contract.run import DataKeys, RunConfig
from trainer.contract.sealing import Sealer
from trainer.data.documents import RawObject, builtin_stdlib, data_error
from trainer.data.prepare import check_enough, prepare
from trainer.data.shards import INDEX_NAME, TOKENIZER_NAME, DatasetIndex
from trainer.platform_client import Platform
from trainer.storage.base import Storage
from trainer.storage.sealed import get_sealed, get_sealed_path, put_sealed_path

_FILES = ("train.bin", "validation.bin", TOKENIZER_NAME, INDEX_NAME)
_ASK_SECONDS = 1.0


class DatasetRoom:
    """Data sets of one node, one folder per recipe; a folder without its index is an unfinished one."""

    def __init__(self, root: Path, run: RunConfig, keys: DataKeys, platform: Platform, storage: Storage) -> None:
        self._run, self._platform, self._storage = run, platform, storage
        self._sealer = Sealer(keys.dataset)
        self.recipe = dataset_recipe(run.training.data, run.training.tokenizer, run.dataset.dataset_id)
        self._root = root
        self.folder = root / self.recipe

    def obtain(self, local_files: list[Path]) -> DatasetIndex:
        """Prepared data in `self.folder`. Raises TrainerError (DATA_ERROR, STORAGE_ERROR)."""
        prepared = self._run.dataset.prepared
        if local_files:
            # Files may change between runs under the same recipe; nothing vouches for an earlier preparation.
            self.folder = self._root / f"{self.recipe}-local"
        if not (self.folder / INDEX_NAME).exists() or local_files:
            if prepared is not None:
                self._download(prepared)
            else:
                self._prepare(local_files)
        index = DatasetIndex.read(self.folder)
        check_enough(index, self._run.training)
        return index

    def wait_for_prepared(self, stopped: threading.Event) -> None:
        """On nodes other than the first: until the first node's agent has registered the data set."""
        while not self._run.dataset.prepared and not stopped.wait(_ASK_SECONDS):
            self._run = self._platform.run()

    def upload(self, index: DatasetIndex) -> None:
        """Seal, store and register what was prepared here, so that no later attempt does the work again."""
        prefix = f"{self._run.prefix}dataset/"
        files = [put_sealed_path(self._storage, self._sealer, prefix, name, self.folder / name) for name in _FILES]
        manifest = DatasetManifest(
            recipe=self.recipe,
            fingerprint=index.fingerprint,
            vocab_size=index.vocab_size,
            train_tokens=index.train_tokens,
            validation_tokens=index.validation_tokens,
            documents=index.documents,
            details={"dtype": index.dtype},
            created_at=datetime.now(UTC),
            files=files,
        )
        self._platform.register_dataset(manifest)

    def _prepare(self, local_files: list[Path]) -> None:
        building = self._new_folder()
        prepare(self._raw_objects(local_files), self._run.training, building)
        self._adopt(building)

    def _download(self, manifest: DatasetManifest) -> None:
        building = self._new_folder()
        for file in manifest.files:
            get_sealed_path(self._storage, self._sealer, file, building / file.path)
        self._adopt(building)

    def _new_folder(self) -> Path:
        """Of this process alone: attempts that share a cache may prepare the same data at the same time."""
        building = self.folder.with_name(f"{self.folder.name}.{os.getpid()}.building")
        shutil.rmtree(building, ignore_errors=True)
        return building

    def _adopt(self, building: Path) -> None:
        if self.folder.name.endswith("-local") or not (self.folder / INDEX_NAME).exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        try:
            building.rename(self.folder)
        except OSError:
            # Another attempt was quicker: equal recipes give equal tokens, so its work is as good.
            if not (self.folder / INDEX_NAME).exists():
                raise
            shutil.rmtree(building)

    def _raw_objects(self, local_files: list[Path]) -> Iterator[RawObject]:
        source = self._run.dataset
        if local_files:
            yield from (_read_local(path) for path in local_files)
        elif source.origin == "builtin" and self._run.training.data.source.startswith("builtin:"):
            yield from builtin_stdlib()
        elif not source.raw:
            raise data_error(
                f"training.data.source {self._run.training.data.source!r} has no objects here; "
                "give files with --data in a standalone run, or upload the data set to the platform"
            )
        for file in source.raw:
            if source.origin == "sealed":
                yield RawObject(file.path, get_sealed(self._storage, self._sealer, file))
            else:
                yield RawObject(file.path, b"".join(self._storage.get(part.key) for part in file.parts))


def _read_local(path: Path) -> RawObject:
    try:
        return RawObject(path.name, path.read_bytes())
    except OSError as error:
        raise data_error(f"--data {path}: {error.strerror}; give a readable file") from error
