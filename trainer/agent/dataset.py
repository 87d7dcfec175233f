"""Provide the prepared data sets on this node: from the cache, from the store, or by preparing them."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from trainer.agent.preparation_claim import PreparationClaim
from trainer.client.platform import Platform, PreparationLost
from trainer.contract.data import MixturePart, TokenizerSpec
from trainer.contract.encryption import Encryptor, authenticate, check_manifest
from trainer.contract.events import WAIT_FOR_DATA
from trainer.contract.manifest import DatasetManifest, StoredFile
from trainer.contract.recipe import dataset_recipes
from trainer.contract.run import (
    DataKeys,
    DatasetSource,
    EndClass,
    PreparationRegistration,
    PreparationReply,
    RunConfig,
)
from trainer.data.documents import RawObject, builtin_stdlib, data_error
from trainer.data.prepare import check_enough, prepare
from trainer.data.shards import INDEX_NAME, TOKENIZER_NAME, DatasetIndex, file_names
from trainer.data.source import PreparedSource
from trainer.data.tokenizer import ExistingTokenizer
from trainer.errors import TrainerError
from trainer.reporting.sinks.sink_queue import ReportEvent
from trainer.storage.base import Storage
from trainer.storage.encrypted import decrypt_parts, decrypt_to_file, encrypt_file

_POLL_SECONDS = 1.0


class DatasetPreparer:
    """Fetches or prepares the data sets of a run, one folder per recipe; a folder without an index is incomplete.

    After `fetch_or_prepare`, `locations` has one data set for each part of the data, and `newly_prepared` the numbers
    of those that are not in the store yet. `is_waiting`: another job prepares what this one needs; `seconds_waited`:
    how long it has.
    """

    def __init__(
        self,
        root: Path,
        run: RunConfig,
        keys: DataKeys,
        platform: Platform,
        storage: Storage,
        is_stopping: Callable[[], bool],
        base: Path | None = None,
        report_event: ReportEvent = lambda kind, **data: None,
    ) -> None:
        """Set up for one run; `base` is the folder of the base model, whose tokenizer is used."""
        self._base, self._report_event = base, report_event
        self._root, self._run, self._keys, self._platform, self._storage = root, run, keys, platform, storage
        self._parts = run.data.parts
        self._recipes = dataset_recipes(self._parts, run.tokenizer, [source.dataset_id for source in run.datasets])
        self._claims = {
            recipe: PreparationClaim(platform, source.dataset_id, recipe)
            for recipe, source in zip(self._recipes, run.datasets, strict=True)
        }
        self._is_stopping = is_stopping
        self._pause = threading.Event().wait
        self.is_waiting = False
        self.seconds_waited = 0.0
        self.newly_prepared: list[int] = []
        self.locations: list[PreparedSource] = []

    def fetch_or_prepare(self, local_files: list[Path]) -> None:
        """Fill `locations`, one for each part of the data. Raises TrainerError (DATA_ERROR, STORAGE_ERROR, STOPPED)."""
        trainer = self._run.tokenizer.trainer_among(self._parts)
        # The part that trains the tokenizer comes first; the others need what it trained. Apart from that the order is
        # the same in all jobs, so that no two wait for each other's claims.
        is_trained = self._run.tokenizer.kind != "model"
        order = sorted(
            range(len(self._parts)), key=lambda number: (is_trained and number != trainer, self._recipes[number])
        )
        found: dict[int, PreparedSource] = {}
        for number in order:
            trained = found[trainer].folder if is_trained and number != trainer else None
            found[number] = self._obtain_part(number, trained, _files_of(self._parts, number, local_files))
        self.locations = [found[number] for number in range(len(self._parts))]
        made, asked = DatasetIndex.read(found[trainer].folder).vocab_size, self._run.tokenizer.vocab_size
        if is_trained and made < asked:
            because = (
                f"{self._parts[trainer].source} has too little text, or a sample of "
                f"{self._run.tokenizer.sample_size:,} characters is too small; raise tokenizer.sample_characters, add "
                "text, or lower tokenizer.vocab_size"
            )
            self._report_event("tokenizer.smaller", asked=asked, made=made, because=because)

    def wait_for_prepared(self, over: threading.Event) -> None:
        """Wait until the first node's agent has registered the data sets, or the attempt is over. For all other nodes.

        Raises TrainerError (STOPPED).
        """
        while not all(source.prepared for source in self._run.datasets) and not over.wait(_POLL_SECONDS):
            if self._is_stopping():
                raise TrainerError(EndClass.STOPPED, "stopped while the first node prepared the data")
            self._run = self._platform.run()

    def upload(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Store and register the data sets in `newly_prepared`, for other attempts. Raises TrainerError.

        What another attempt stores meanwhile is left to it, until `is_over`: then this one no longer waits for it.
        """
        for number in self.newly_prepared:
            claim = self._claims[self._recipes[number]]
            try:
                # While a job trains, it does not wait, though this thread does.
                while self._ask(number, is_over, reports=self._run.training is None).state == "prepare":
                    if self._store(number, claim):
                        break
            finally:
                claim.release()

    def _store(self, number: int, claim: PreparationClaim) -> bool:
        """Encrypt, store and register a data set. Return False if another attempt has taken over the claim."""
        folder, recipe, token = self.locations[number].folder, self._recipes[number], claim.token
        if token is None:
            return False
        index = DatasetIndex.read(folder)
        # A folder for each claim: an attempt that continues after it lost its claim overwrites nothing.
        prefix = f"{self._run.prefix}dataset/{recipe[:16]}/{token}/"
        encryptor = Encryptor(self.locations[number].key)
        files = [encrypt_file(self._storage, encryptor, prefix, name, folder / name) for name in file_names(index)]
        try:
            self._platform.register_dataset(
                PreparationRegistration(token=token, manifest=self._manifest(number, index, files))
            )
        except PreparationLost:
            is_registered = False
        else:
            is_registered = True
        claim.token = None
        return is_registered

    def _ask(self, number: int, is_enough: Callable[[], bool], *, reports: bool) -> PreparationReply:
        """Ask for the claim of a data set, and while another attempt prepares it, wait until `is_enough`.

        `reports`: whether this is a wait of the job. Raises TrainerError, STOPPED among others.
        """
        claim, begin, announced = self._claims[self._recipes[number]], time.monotonic(), ""
        try:
            while (reply := claim.ask()).state == "wait" and not is_enough():
                if self._is_stopping():
                    raise TrainerError(EndClass.STOPPED, "stopped while another job prepared the data")
                if reports and reply.job_id != announced:
                    announced = reply.job_id
                    self._report_event("dataset.waiting", source=self._parts[number].source, job=reply.job_id)
                self.is_waiting = reports
                self._pause(_POLL_SECONDS)
        finally:
            if self.is_waiting:
                self.is_waiting = False
                seconds = time.monotonic() - begin
                self.seconds_waited += seconds
                self._report_event("phase.finished", phase=WAIT_FOR_DATA, seconds=seconds)
        return reply

    def _claim(self, number: int, folder: Path) -> DatasetManifest | None:
        """Return the manifest of a data set that another attempt has prepared; None if this one is to prepare it.

        A job that trains need not wait for the store if its node's cache has the data. Raises TrainerError.
        """
        trains = self._run.training is not None
        reply = self._ask(number, lambda: trains and _is_complete(folder), reports=True)
        if reply.state == "failed":
            raise TrainerError(EndClass.DATA_ERROR, f"{reply.because} (found by {reply.job_id}, which prepared it)")
        return reply.prepared

    def _manifest(self, number: int, index: DatasetIndex, files: list[StoredFile]) -> DatasetManifest:
        manifest = DatasetManifest(
            dataset_id=self._run.datasets[number].dataset_id,
            recipe=self._recipes[number],
            fingerprint=index.fingerprint,
            vocab_size=index.vocab_size,
            train_tokens=index.train_tokens,
            validation_tokens=index.validation_tokens,
            documents=index.documents,
            details={"dtype": index.dtype, "shards": {split: len(found) for split, found in index.shards.items()}},
            created_at=datetime.now(UTC),
            files=files,
        )
        return authenticate(manifest, Encryptor(self._keys.of_dataset(manifest.dataset_id)))

    def _tokenizer(self, trained: Path | None) -> TokenizerSpec | ExistingTokenizer:
        """Return the tokenizer of a part. `trained`: folder of the part that trains the tokenizer, if it is another
        one."""
        spec = self._run.tokenizer
        if self._base is not None:
            try:
                return ExistingTokenizer.from_model(self._base, spec.vocab_size)
            except ValueError as error:
                raise TrainerError(EndClass.BAD_SPEC, str(error)) from error
        return spec if trained is None else ExistingTokenizer.from_file(trained / TOKENIZER_NAME)

    def _obtain_part(self, number: int, trained: Path | None, local_files: list[Path]) -> PreparedSource:
        part, source = self._parts[number], self._run.datasets[number]
        # Local files may change between runs under the same recipe, so they are always prepared again.
        suffix = "-local" if local_files else ""
        folder = self._root / f"{self._recipes[number]}{suffix}"
        prepared = source.prepared or self._claim(number, folder)
        place = PreparedSource(part.source, folder, prepared, self._keys.of_dataset(source.dataset_id))
        if prepared is None:
            self.newly_prepared.append(number)
        else:
            check_manifest(prepared, Encryptor(place.key), recipe=self._recipes[number])
        # Without a manifest to fetch shards by, a folder into which another attempt streams is not enough.
        is_here = (folder / INDEX_NAME).exists() if prepared is not None else _is_complete(folder)
        if not is_here or local_files:
            building = folder.with_name(f"{folder.name}.{socket.gethostname()}.{os.getpid()}.building")
            shutil.rmtree(building, ignore_errors=True)
            if prepared is not None and not local_files:
                self._download(place, building)
            else:
                objects = _ObjectReader(part, source, self._storage, Encryptor(place.key), local_files)
                tokenizer = self._tokenizer(trained)
                try:
                    prepare(partial(self._until_stopped, objects), part, tokenizer, building)
                except Exception as error:
                    self._claims[self._recipes[number]].release(error)
                    raise
                place = replace(place, manifest=None)
            _publish_folder(building, folder)
        if self._run.training is not None:
            check_enough(folder, DatasetIndex.read(folder), part.source, self._run.training)
        return place

    def _until_stopped(self, objects: "_ObjectReader") -> Iterator[RawObject]:
        """Yield the same objects; raise TrainerError (STOPPED) in their reading once the run is to stop."""

        def watched(raw: RawObject) -> Iterator[bytes]:
            for block in raw.read():
                if self._is_stopping():
                    raise TrainerError(EndClass.STOPPED, "stopped while preparing the data")
                yield block

        return (RawObject(raw.name, partial(watched, raw)) for raw in objects())

    def _download(self, place: PreparedSource, building: Path) -> None:
        """Download all files of a data set except its shards, which are streamed during training."""
        assert place.manifest is not None
        encryptor = Encryptor(place.key)
        for file in place.manifest.files:
            if not file.path.endswith(".tokens"):
                decrypt_to_file(self._storage, encryptor, file, building / file.path)


def _is_complete(folder: Path) -> bool:
    """Return whether the folder of a data set has all of its files."""
    if not (folder / INDEX_NAME).exists():
        return False
    return all((folder / name).exists() for name in file_names(DatasetIndex.read(folder)))


def _publish_folder(building: Path, folder: Path) -> None:
    """Move `building`, private to this process, to `folder`, unless another attempt with the same cache was first."""
    if folder.name.endswith("-local") or not (folder / INDEX_NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)
    try:
        building.rename(folder)
    except OSError:
        # Another attempt has renamed its folder first; equal recipes give equal tokens, so its folder is used. It may
        # stream, and lack some shards.
        if not (folder / INDEX_NAME).exists():
            raise
        for path in building.iterdir():
            if not (folder / path.name).exists():
                path.rename(folder / path.name)
        shutil.rmtree(building)


def _files_of(parts: list[MixturePart], number: int, local_files: list[Path]) -> list[Path]:
    """Return the local files of a part: NAME.* for the source dataset:NAME of a mixture, all for a single source."""
    if len(parts) == 1 or not local_files:
        return local_files
    return [path for path in local_files if f"dataset:{path.stem}" == parts[number].source]


class _ObjectReader:
    """Iterates over the objects of a data set; each call starts from the first."""

    def __init__(
        self, part: MixturePart, source: DatasetSource, storage: Storage, encryptor: Encryptor, local_files: list[Path]
    ) -> None:
        self._part, self._source, self._storage = part, source, storage
        self._encryptor, self._local_files = encryptor, local_files

    def __call__(self) -> Iterable[RawObject]:
        if self._local_files:
            return map(RawObject.file, self._local_files)
        if self._source.origin == "builtin" and self._part.source.startswith("builtin:"):
            return builtin_stdlib()
        if not self._source.raw:
            raise data_error(
                f"training.data.source {self._part.source!r} has no files; pass them with --data in a standalone run, "
                "or upload the data set to the platform"
            )
        return (self._stored(file) for file in self._source.raw)

    def _stored(self, file: StoredFile) -> RawObject:
        def read() -> Iterator[bytes]:
            if self._source.origin == "sealed":
                yield from decrypt_parts(self._storage, self._encryptor, file)
            else:
                yield from (self._storage.get(part.key) for part in file.parts)

        return RawObject(file.path, read)
