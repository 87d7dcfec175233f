"""Provide the prepared data sets on this node: from the cache, from the store, or by preparing them."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from trainer.agent.node_servers import NodeServers
from trainer.agent.preparation_claim import PreparationClaim
from trainer.agent.preparation_group import PreparationGroup, num_processes
from trainer.agent.unit_workers import UnitsTask
from trainer.client.platform import Platform, PreparationLost
from trainer.contract.data import TokenizerSpec
from trainer.contract.encryption import Encryptor, authenticate, check_manifest
from trainer.contract.events import WAIT_FOR_DATA
from trainer.contract.manifest import DatasetManifest, StoredFile
from trainer.contract.recipe import dataset_recipes
from trainer.contract.run import (
    DataKeys,
    EndClass,
    PreparationRegistration,
    PreparationReply,
    RunConfig,
)
from trainer.data.prepare import UNIT_BYTES, Preparation, check_enough
from trainer.data.raw_objects import files_of_part, read_units, until_stopped
from trainer.data.shards import INDEX_NAME, TOKENIZER_NAME, DatasetIndex, file_names
from trainer.data.source import PreparedSource
from trainer.data.tokenizer import ExistingTokenizer
from trainer.errors import TrainerError
from trainer.reporting.sinks.sink_queue import ReportEvent
from trainer.resilience.assignment import FolderConnection, HttpConnection
from trainer.resilience.forking import ForkedProcess
from trainer.resilience.store_server import StoreAddress
from trainer.storage.base import Storage
from trainer.storage.encrypted import decrypt_to_file, encrypt_file

_POLL_SECONDS = 1.0
_REQUESTS_PER_SECOND = 30
"""How often all nodes of a run together ask whether its data is prepared, at most."""


@dataclass(frozen=True)
class NodeProcesses:
    """How processes of this node prepare data. `index`: of the node; `servers` start the store that they share;
    `follow` reads their output."""

    connection: HttpConnection | FolderConnection
    index: int
    servers: NodeServers
    follow: Callable[[ForkedProcess, int], None]


def raw_sources(run: RunConfig, keys: DataKeys, base: Path) -> list[PreparedSource]:
    """Return the data sets of an evaluation job, the files of which its ranks read as they are. `base`: folder of the
    model, which has the tokenizer."""
    return [
        PreparedSource(part.source, base, None, keys.of_dataset(source.dataset_id))
        for part, source in zip(run.data.parts, run.datasets, strict=True)
    ]


class DatasetPreparer:
    """Fetches or prepares the data sets of a run, one folder per recipe; a folder without an index is incomplete.

    After `fetch_or_prepare`, `locations` has one data set for each part of the data, and `newly_prepared` the numbers
    of those that are not in the store yet. `is_waiting`: another job prepares what this one needs; `seconds_waited`:
    how long it has. The first node of a run prepares, and the others help it, or wait.
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
        processes: NodeProcesses | None = None,
    ) -> None:
        """Set up for one run. `base`: folder of the base model, which also has the tokenizer. Without `processes`, this
        process prepares alone."""
        self._base, self._report_event, self._processes = base, report_event, processes
        self._root, self._run, self._keys, self._platform, self._storage = root, run, keys, platform, storage
        self._parts = run.data.parts
        self._recipes = dataset_recipes(self._parts, run.tokenizer, [source.dataset_id for source in run.datasets])
        self._helps = processes is not None and processes.index > 0
        self._claims = {
            recipe: PreparationClaim(platform, source.dataset_id, recipe, helps=self._helps)
            for recipe, source in zip(self._recipes, run.datasets, strict=True)
        }
        self._is_stopping = is_stopping
        self._pause = threading.Event().wait
        self.is_waiting = False
        self.seconds_waited = 0.0
        self.newly_prepared: list[int] = []
        self._found: dict[int, PreparedSource] = {}
        self._helped: set[str] = set()
        self._lost: set[str] = set()
        self._nodes = run.layout.nodes + run.spare_nodes
        self._poll_seconds = max(_POLL_SECONDS, self._nodes / _REQUESTS_PER_SECOND) if self._helps else _POLL_SECONDS
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
        for number in order:
            self._found[number] = self._obtain_part(number, files_of_part(self._parts, number, local_files))
        self.locations = [self._found[number] for number in range(len(self._parts))]
        made, asked = DatasetIndex.read(self._found[trainer].folder).vocab_size, self._run.tokenizer.vocab_size
        if is_trained and made < asked:
            because = (
                f"{self._parts[trainer].source} has too little text, or a sample of "
                f"{self._run.tokenizer.sample_size:,} characters is too small; raise tokenizer.sample_characters, add "
                "text, or lower tokenizer.vocab_size"
            )
            self._report_event("tokenizer.smaller", asked=asked, made=made, because=because)

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
        token = claim.token
        if token is None:
            return False
        folder = self.locations[number].folder
        names = file_names(DatasetIndex.read(folder))
        return self._store_files(number, token, folder, names, []) is not None

    def _store_files(
        self, number: int, token: UUID, folder: Path, names: list[str], stored: list[StoredFile]
    ) -> DatasetManifest | None:
        """Store files of a data set beside those that are stored, and register all of them. Return the manifest, None
        if another attempt has taken over the claim."""
        encryptor, prefix = Encryptor(self._key(number)), self._prefix(number, token)
        files = stored + [encrypt_file(self._storage, encryptor, prefix, name, folder / name) for name in names]
        manifest: DatasetManifest | None = self._manifest(number, DatasetIndex.read(folder), files)
        try:
            self._platform.register_dataset(PreparationRegistration(token=token, manifest=manifest))
        except PreparationLost:
            manifest = None
        self._claims[self._recipes[number]].token = None
        return manifest

    def _prefix(self, number: int, token: UUID) -> str:
        """Return the prefix of the keys of a data set's objects. Each claim has one of its own: an attempt that
        continues after it lost its claim overwrites nothing."""
        return f"{self._run.prefix}dataset/{self._recipes[number][:16]}/{token}/"

    def _key(self, number: int) -> str:
        return self._keys.of_dataset(self._run.datasets[number].dataset_id)

    def _ask(self, number: int, is_enough: Callable[[], bool], *, reports: bool) -> PreparationReply:
        """Ask for the claim of a data set, and while another attempt, or another node, prepares it, wait until
        `is_enough`, or help.

        `reports`: whether this is a wait of the job. Raises TrainerError, STOPPED among others.
        """
        claim, begin, announced = self._claims[self._recipes[number]], time.monotonic(), ""
        try:
            while (reply := claim.ask()).state == "wait" and not is_enough():
                if self._is_stopping():
                    raise TrainerError(EndClass.STOPPED, "stopped while another job prepared the data")
                if reply.store is not None and reply.store not in self._helped:
                    self._helped.add(reply.store)
                    self._help(number, reply.store)
                    continue
                if reply.store is not None and reply.store in self._lost:
                    raise TrainerError(
                        EndClass.COLLECTIVE_TIMEOUT,
                        f"this node lost the connection to the node that leads the preparation ({reply.store}); check "
                        "the network between the nodes",
                    )
                is_of_other = reply.job_id != self._run.job_id
                if reports and is_of_other and reply.job_id != announced:
                    announced = reply.job_id
                    self._report_event("dataset.waiting", source=self._parts[number].source, job=reply.job_id)
                self.is_waiting = reports and is_of_other
                self._pause(self._poll_seconds)
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
        may_use_cache = self._run.training is not None and not self._helps
        reply = self._ask(number, lambda: may_use_cache and _is_complete(folder), reports=True)
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
        return authenticate(manifest, Encryptor(self._key(number)))

    def _tokenizer(self, number: int) -> TokenizerSpec | ExistingTokenizer:
        """Return the tokenizer of a part: the model's, or that of the part that trains it."""
        spec = self._run.tokenizer
        if self._base is not None:
            try:
                return ExistingTokenizer.from_model(self._base, spec.vocab_size)
            except ValueError as error:
                raise TrainerError(EndClass.BAD_SPEC, str(error)) from error
        trainer = spec.trainer_among(self._parts)
        return spec if number == trainer else ExistingTokenizer.from_file(self._found[trainer].folder / TOKENIZER_NAME)

    def _obtain_part(self, number: int, local_files: list[Path]) -> PreparedSource:
        part, source = self._parts[number], self._run.datasets[number]
        # Local files may change between runs under the same recipe, so they are always prepared again.
        suffix = "-local" if local_files else ""
        folder = self._root / f"{self._recipes[number]}{suffix}"
        prepared = source.prepared or self._claim(number, folder)
        place = PreparedSource(part.source, folder, prepared, self._key(number))
        if prepared is not None:
            check_manifest(prepared, Encryptor(place.key), recipe=self._recipes[number])
        # Without a manifest to fetch shards by, a folder into which another attempt streams is not enough.
        is_here = (folder / INDEX_NAME).exists() if prepared is not None else _is_complete(folder)
        if not is_here or local_files:
            building = self._scratch(folder, "building")
            if prepared is not None and not local_files:
                self._download(place, building)
            else:
                try:
                    place = replace(place, manifest=self._prepare(number, local_files, building))
                except PreparationLost:
                    return self._obtain_part(number, local_files)
                except Exception as error:
                    self._claims[self._recipes[number]].release(error)
                    raise
            _publish_folder(building, folder)
        if prepared is None and place.manifest is None:
            self.newly_prepared.append(number)
        if self._run.training is not None:
            check_enough(folder, DatasetIndex.read(folder), part.source, self._run.training)
        return place

    def _scratch(self, folder: Path, purpose: str) -> Path:
        """Return the path of a folder of this process, which does not exist, beside a data set's."""
        path = folder.with_name(f"{folder.name}.{socket.gethostname()}.{os.getpid()}.{purpose}")
        shutil.rmtree(path, ignore_errors=True)
        return path

    def _prepare(self, number: int, local_files: list[Path], folder: Path) -> DatasetManifest | None:
        """Prepare a data set in `folder`.

        If other nodes help, its shards are stored, and it is registered. Return its manifest then. Raises
        PreparationLost if another attempt has taken over the claim meanwhile.
        """
        key, tokenizer = self._key(number), self._tokenizer(number)
        part, source = self._parts[number], self._run.datasets[number]
        units = read_units(part, source, self._storage, Encryptor(key), local_files, UNIT_BYTES)
        processes = self._processes
        if len(units) == 1 or processes is None:
            watched = [until_stopped(unit, self._is_stopping) for unit in units]
            Preparation(watched, part, tokenizer, folder).run()
            return None
        local = num_processes(len(units), self._nodes)
        claim = self._claims[self._recipes[number]]
        token = claim.token if self._nodes > 1 else None
        prefix = self._prefix(number, token) if token is not None else ""
        folder.mkdir(parents=True)
        address = processes.servers.store_address(self._nodes * local + 1)
        try:
            if token is not None:
                claim.offer_work(f"{address.host}:{address.port}")
            task = self._task(number, address, tokenizer, folder, local_files, prefix)
            group = PreparationGroup(task, local, leads=True, follow=processes.follow)
            files = group.run(self._is_stopping, store_lost=lambda: processes.servers.has_lost_store)
            if token is not None:
                claim.offer_work(None)
        finally:
            processes.servers.kill_store()
        if token is None:
            return None
        index = DatasetIndex.read(folder)
        stored = {file.path for file in files}
        names = [name for name in file_names(index) if name not in stored]
        manifest = self._store_files(number, token, folder, names, files)
        claim.release()
        if manifest is None:
            raise PreparationLost(EndClass.INTERNAL_ERROR, f"another attempt has prepared {part.source}")
        return manifest

    def _help(self, number: int, store: str) -> None:
        """Prepare units of a data set that the first node of this attempt prepares, until there are none."""
        assert self._processes is not None, "only a node of several is asked to"
        host, _, port = store.rpartition(":")
        source, encryptor = self._run.datasets[number], Encryptor(self._key(number))
        units = len(read_units(self._parts[number], source, self._storage, encryptor, [], UNIT_BYTES))
        folder = self._scratch(self._root / self._recipes[number], "units")
        task = self._task(number, StoreAddress(host, int(port)), self._tokenizer(number), folder, [], "")
        next_look = time.monotonic() + self._poll_seconds

        def is_over() -> bool:
            nonlocal next_look
            if time.monotonic() < next_look:
                return False
            next_look = time.monotonic() + self._poll_seconds
            return self._claims[self._recipes[number]].ask().store != store

        try:
            group = PreparationGroup(
                task, num_processes(units, self._nodes), leads=False, follow=self._processes.follow
            )
            group.run(self._is_stopping, is_over=is_over)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if group.has_lost_store:
            self._lost.add(store)

    def _task(
        self,
        number: int,
        store: StoreAddress,
        tokenizer: TokenizerSpec | ExistingTokenizer,
        folder: Path,
        local_files: list[Path],
        prefix: str,
    ) -> UnitsTask:
        assert self._processes is not None, "without them, there is no group"
        return UnitsTask(
            connection=self._processes.connection,
            run=self._run,
            number=number,
            recipe=self._recipes[number],
            key=self._key(number),
            tokenizer=tokenizer,
            local_files=local_files,
            unit_bytes=UNIT_BYTES,
            folder=folder,
            store=store,
            prefix=prefix,
            helps=self._helps,
        )

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
