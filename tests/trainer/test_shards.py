"""Shards come from the store when they are needed, a bounded number stays, and none that is damaged is used."""

import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.runs import TINY, tiny_text
from trainer.contract.data import DataSpec, MixturePart, TokenizerSpec
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.manifest import DatasetManifest
from trainer.contract.optimisation import BatchSizeSchedule
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.data.cache import ShardCache
from trainer.data.corpus import Corpus
from trainer.data.documents import RawObject
from trainer.data.loader import Loader, RankShare
from trainer.data.prepare import Preparation
from trainer.data.shards import DatasetIndex, file_names
from trainer.data.source import PreparedSource, Source
from trainer.errors import TrainerError
from trainer.storage.encrypted import encrypt_file
from trainer.storage.folder import FolderStorage

LENGTH = 32
SHARD_BYTES = 4096


class CountingStorage(FolderStorage):
    """Says what was asked for, and can hold an answer back until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self._changed = threading.Condition()

    def wait_for_asked(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, 30)

    def get(self, key: str) -> bytes:
        with self._changed:
            self.asked.append(key)
            self._changed.notify_all()
        assert self.open.wait(30)
        return super().get(key)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    raw = RawObject.of("a.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in tiny_text().splitlines()).encode())
    part = MixturePart(source="dataset:a", validation_fraction=0.1)
    Preparation([lambda: [raw]], part, TokenizerSpec(vocab_size=300), folder, SHARD_BYTES).run()
    return folder


@pytest.fixture
def stored(prepared: Path, tmp_path: Path) -> tuple[PreparedSource, CountingStorage]:
    """The data set in a store, and a folder of a node that holds all but its shards."""
    key, storage = new_keyset(), CountingStorage(tmp_path / "store")
    index = DatasetIndex.read(prepared)
    files = [encrypt_file(storage, Encryptor(key), "d/", name, prepared / name) for name in file_names(index)]
    folder = tmp_path / "node"
    folder.mkdir()
    for name in file_names(index):
        if not name.endswith(".tokens"):
            (folder / name).write_bytes((prepared / name).read_bytes())
    manifest = DatasetManifest(
        recipe="r", fingerprint=index.fingerprint, vocab_size=300, train_tokens=1, validation_tokens=1, documents=1,
        created_at="2026-01-01T00:00:00Z", files=files,
    )  # fmt: skip
    return PreparedSource("dataset:a", folder, manifest, key), storage


def training_of(**data: Any) -> TrainingSpec:
    fields = {"source": "dataset:a", "shuffle_shards": 2, **data}
    return TrainingSpec.model_validate({**TINY, "data": fields, "sequence_length": LENGTH, "tokens_per_step": 256})


def shards_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.tokens"))


def samples(place: PreparedSource, storage: FolderStorage, count: int = 200, **data: Any) -> list[list[int]]:
    corpus = Corpus([place], training_of(**data), storage)
    try:
        return [corpus.rows(np.array([number])).tokens_BS[0].tolist() for number in range(count)]
    finally:
        corpus.close()


@pytest.mark.parametrize("packing", ["none", "documents"])
def test_what_is_streamed_is_what_was_prepared(
    prepared: Path, stored: tuple[PreparedSource, CountingStorage], packing: str
) -> None:
    here = PreparedSource("dataset:a", prepared, None, "")
    assert samples(*stored, packing=packing) == samples(here, stored[1], packing=packing)
    parts = [key for key in stored[1].asked if ".tokens" in key]
    assert len(parts) == len(set(parts))


def test_only_the_shards_of_the_first_windows_are_fetched_for_the_first_steps(
    stored: tuple[PreparedSource, CountingStorage],
) -> None:
    place, storage = stored
    corpus = Corpus([place], training_of(), storage)
    sampler = corpus.sources[0].sampler(TINY["seed"])
    loader = Loader(corpus, BatchSizeSchedule(8), RankShare(0, 1, 8), torch.device("cpu"), 0)
    for step in range(4):
        loader.next_step(step)
    storage.wait_for_asked(4)
    loader.close()
    names = {f"d/train-00000-{number:05d}.tokens-000.part" for number in sampler.coming_shards(0)}
    assert set(storage.asked) == names
    assert len(names) == len(storage.asked) == 4 < len(corpus.sources[0].rows)


class Clock:
    """A clock that stands still until it is set, and records when it was first read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read = threading.Event()

    def monotonic(self) -> float:
        self.read.set()
        return self.now


def test_the_wait_for_a_step_is_measured_and_is_zero_for_a_ready_one(
    stored: tuple[PreparedSource, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, storage = stored
    storage.open.clear()
    clock = Clock()
    monkeypatch.setattr("trainer.data.loader.time", clock)
    corpus = Corpus([place], training_of(), storage)
    loader = Loader(corpus, BatchSizeSchedule(8), RankShare(0, 1, 8), torch.device("cpu"), 0)

    def let_go() -> None:
        assert clock.read.wait(30)  # the step is being asked for
        clock.now = 5.0
        storage.open.set()

    threading.Thread(target=let_go, daemon=True).start()
    loader.next_step(0)
    loader.next_step(1)
    assert list(loader.stalls) == [5.0, 0.0]
    loader.close()


def cache(folder: Path, index: DatasetIndex, fetch: Callable | None, limit: int, max_open: int = 4) -> ShardCache:
    return ShardCache(folder, index.shards["train"], index.dtype, fetch, limit, max_open)


def test_the_cache_keeps_the_shards_that_were_used_last_and_no_more_than_fit(prepared: Path, tmp_path: Path) -> None:
    index = DatasetIndex.read(prepared)
    fetched: list[str] = []

    def fetch(name: str) -> bytes:
        fetched.append(name)
        return (prepared / name).read_bytes()

    first = cache(tmp_path, index, fetch, 3 * SHARD_BYTES, max_open=1)
    for number in (0, 1, 2, 0, 3):
        assert (
            first.tokens(number).tolist() == np.fromfile(prepared / index.shards["train"][number].name, "<u2").tolist()
        )
    names = [shard.name for shard in index.shards["train"]]
    assert shards_in(tmp_path) == [names[0], names[2], names[3]]
    first.tokens(1)
    assert fetched == [names[0], names[1], names[2], names[3], names[1]]


def test_a_mapped_shard_stays_readable_when_it_is_evicted(prepared: Path, tmp_path: Path) -> None:
    index = DatasetIndex.read(prepared)
    small = cache(tmp_path, index, lambda name: (prepared / name).read_bytes(), SHARD_BYTES)
    held = small.tokens(0)
    small.tokens(1)
    assert shards_in(tmp_path) == ["train-00000-00001.tokens"]
    assert small.tokens(0) is held
    assert held.tolist() == np.fromfile(prepared / "train-00000-00000.tokens", "<u2").tolist()


def test_nothing_is_evicted_from_a_folder_that_a_run_cannot_fill_again(prepared: Path, tmp_path: Path) -> None:
    index = DatasetIndex.read(prepared)
    whole = cache(tmp_path, index, None, 2**30)
    (tmp_path / "train-00000-00000.tokens").write_bytes((prepared / "train-00000-00000.tokens").read_bytes())
    other = cache(tmp_path, index, lambda name: (prepared / name).read_bytes(), SHARD_BYTES)
    for number in (1, 2, 3):
        other.tokens(number)
    assert len(shards_in(tmp_path)) == 4
    whole.close()
    other.tokens(4)
    assert shards_in(tmp_path) == ["train-00000-00004.tokens"]


def _read_all(folder: Path, prepared: Path, fetched: Any, barrier: Any) -> None:
    index = DatasetIndex.read(prepared)

    def fetch(name: str) -> bytes:
        fetched.put(name)
        return (prepared / name).read_bytes()

    mine = cache(folder, index, fetch, 2**30)
    barrier.wait(30)
    for number, shard in enumerate(index.shards["train"]):
        assert mine.tokens(number).tolist() == np.fromfile(prepared / shard.name, "<u2").tolist()


def test_processes_of_a_node_fetch_each_shard_once(prepared: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    fetched, barrier = context.Queue(), context.Barrier(4)
    readers = [context.Process(target=_read_all, args=(tmp_path, prepared, fetched, barrier)) for _ in range(4)]
    for reader in readers:
        reader.start()
    names = [fetched.get(timeout=30) for _ in DatasetIndex.read(prepared).shards["train"]]
    for reader in readers:
        reader.join(30)
        assert reader.exitcode == 0
    assert fetched.empty()
    assert sorted(names) == shards_in(tmp_path)


def damage(path: Path, where: int = 100) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def test_a_damaged_file_on_the_node_is_fetched_again(stored: tuple[PreparedSource, CountingStorage]) -> None:
    place, storage = stored
    expected = samples(*stored)
    damage(place.folder / "train-00000-00001.tokens")
    (place.folder / "train-00000-00002.tokens").write_bytes(b"")
    storage.asked.clear()
    assert samples(*stored) == expected
    assert sorted(storage.asked) == ["d/train-00000-00001.tokens-000.part", "d/train-00000-00002.tokens-000.part"]


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_shard_that_is_damaged_in_the_store_ends_the_run_with_its_name(
    stored: tuple[PreparedSource, CountingStorage], tmp_path: Path, how: str
) -> None:
    part = tmp_path / "store/d/train-00000-00001.tokens-000.part"
    damage(part) if how == "damaged" else part.unlink()
    with pytest.raises(
        TrainerError, match="shard train-00000-00001.tokens of dataset:a is damaged: .*on_corrupt: skip"
    ) as e:
        samples(*stored)
    assert e.value.end_class is EndClass.DATA_ERROR


def test_a_damaged_file_that_nothing_can_replace_is_damage(prepared: Path, tmp_path: Path) -> None:
    for path in prepared.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damage(tmp_path / "train-00000-00001.tokens")
    with pytest.raises(
        TrainerError, match="shard train-00000-00001.tokens of dataset:a is damaged: its SHA-256 digest differs"
    ):
        samples(PreparedSource("dataset:a", tmp_path, None, ""), FolderStorage(tmp_path))


def test_samples_of_a_skipped_shard_come_from_the_next_that_is_whole(
    stored: tuple[PreparedSource, CountingStorage], tmp_path: Path
) -> None:
    place, storage = stored
    whole = Corpus([place], training_of(), storage)
    expected = samples(place, storage)
    for number in (1, 2):
        damage(tmp_path / f"store/d/train-00000-{number:05d}.tokens-000.part")
        (place.folder / f"train-00000-{number:05d}.tokens").unlink()
    corpus = Corpus([place], training_of(on_corrupt="skip"), storage)
    skipped: list[str] = []
    corpus.sources[0].on_corrupt = lambda source, error: skipped.append(error.name)
    found = [corpus.rows(np.array([number])).tokens_BS[0].tolist() for number in range(200)]
    replaced = [number for number, (_, shard, _) in enumerate(whole.places(np.arange(200))) if shard in (1, 2)]
    assert [number for number in range(200) if found[number] != expected[number]] == replaced
    for number, (_, shard, row) in enumerate(whole.places(np.arange(200))):
        if shard in (1, 2):
            stand_in = whole.sources[0].row(3, row % whole.sources[0].rows[3])
            assert found[number] == stand_in.tokens_BS[0].tolist()
    assert corpus.skipped_rows == len(replaced) > 0
    assert sorted(skipped) == ["train-00000-00001.tokens", "train-00000-00002.tokens"]
    again = samples(place, storage, on_corrupt="skip")  # met in another order: a choice of the store's state alone
    assert again == found


def test_a_loader_counts_the_skipped_of_each_step(
    stored: tuple[PreparedSource, CountingStorage], tmp_path: Path
) -> None:
    place, storage = stored
    damage(tmp_path / "store/d/train-00000-00001.tokens-000.part")
    plan = Corpus([place], training_of(), storage)
    expected = [sum(shard == 1 for _, shard, _ in plan.places(np.arange(8 * s, 8 * s + 8))) for s in range(12)]
    found = [0] * 12
    for rank in range(2):
        corpus = Corpus([place], training_of(on_corrupt="skip"), storage)
        loader = Loader(corpus, BatchSizeSchedule(8), RankShare(rank, 2, 2), torch.device("cpu"), 0)
        for step in range(12):
            loader.next_step(step)
            found[step] += loader.skipped_sequences
        loader.close()
    assert found == expected
    assert sum(expected) > 0


def test_a_data_set_with_no_whole_shard_ends_the_run_even_when_damage_is_skipped(
    stored: tuple[PreparedSource, CountingStorage], tmp_path: Path
) -> None:
    for path in (tmp_path / "store/d").glob("train-*.tokens-*"):
        damage(path)
    with pytest.raises(TrainerError, match="every shard of the train split of dataset:a is damaged"):
        samples(*stored, on_corrupt="skip")


def test_a_file_of_another_shard_is_damage(stored: tuple[PreparedSource, CountingStorage]) -> None:
    place, storage = stored
    assert place.manifest is not None
    moved = place.manifest.files[1]
    swapped = place.manifest.model_copy(
        update={"files": [moved.model_copy(update={"path": "train-00000-00000.tokens"})]}
    )
    wrong = PreparedSource(place.name, place.folder, swapped, place.key)
    source = Source(wrong, "train", DataSpec(source="dataset:a"), LENGTH, storage)
    with pytest.raises(TrainerError, match="its SHA-256 digest in the store differs"):
        source.row(0, 0)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(("shards", "prefetch")):
            thread.join(10)
