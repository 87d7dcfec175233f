"""The order of the data is exact: a pure function of (seed, data, sample), for any number of ranks and any restarts."""

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.runs import TINY, tiny_text, tiny_training
from trainer.contract.data import MixturePart, TokenizerSpec
from trainer.contract.optimisation import BatchSizeSchedule
from trainer.contract.rollback import Rollback
from trainer.contract.training import TrainingSpec
from trainer.data.batch import MicroBatch
from trainer.data.corpus import Corpus
from trainer.data.documents import RawObject
from trainer.data.loader import Loader, RankShare, micro_batch, validation_batches
from trainer.data.mixture import TABLE_SIZE, Mixture
from trainer.data.packing import IGNORED, DocumentRows, StreamRows, best_fit
from trainer.data.permutation import Permutation
from trainer.data.prepare import Preparation
from trainer.data.sampler import Sampler, split_range
from trainer.data.shards import DatasetIndex, DocumentLengths
from trainer.data.source import PreparedSource, Source
from trainer.data.tokenizer import ExistingTokenizer
from trainer.models.decoder import Decoder, initialise
from trainer.storage.folder import FolderStorage

LENGTH = 32
NOWHERE = FolderStorage(Path("/nonexistent"))


@given(size=st.integers(1, 3000), key=st.text(max_size=8))
@settings(max_examples=50)
def test_a_permutation_takes_every_value_once(size: int, key: str) -> None:
    assert sorted(Permutation(size, key)(np.arange(size))) == list(range(size))


@given(size=st.integers(1, 2**62), data=st.data())
@settings(max_examples=30)
def test_a_permutation_of_any_size_stays_inside(size: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    image = Permutation(size, "k")(np.array(index))
    assert len(set(image.tolist())) == len(index)
    assert ((image >= 0) & (image < size)).all()


def test_another_key_gives_another_order() -> None:
    index = np.arange(1000)
    moved = Permutation(1000, "a")(index) == Permutation(1000, "b")(index)
    assert moved.sum() < 20


ROWS = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


@given(rows=ROWS, window=st.integers(1, 5), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_every_epoch_sees_each_row_of_each_shard_once(rows: list[int], window: int, seed: int) -> None:
    sampler = Sampler(rows, seed, "fingerprint", window)
    every = [(shard, row) for shard, count in enumerate(rows) for row in range(count)]
    for epoch in range(3):
        shards, chosen, _ = sampler(np.arange(epoch * sum(rows), (epoch + 1) * sum(rows)))
        assert sorted(zip(shards.tolist(), chosen.tolist(), strict=True)) == every


@given(rows=ROWS, window=st.integers(1, 5), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_samples_come_from_the_shards_that_were_told_to_come(rows: list[int], window: int, seed: int) -> None:
    sampler = Sampler(rows, seed, "fingerprint", window)
    for sample in range(2 * sum(rows)):
        coming = sampler.coming_shards(sample)
        assert len(coming) <= 2 * window
        assert int(sampler(np.array([sample]))[0][0]) in coming[:window]
        assert int(sampler(np.array([sample + 1]))[0][0]) in coming


@given(rows=ROWS, window=st.integers(1, 5), count=st.integers(1, 40))
@settings(max_examples=60)
def test_the_place_of_a_sample_tells_its_shard(rows: list[int], window: int, count: int) -> None:
    sampler = Sampler(rows, 0, "fingerprint", window)
    shards, _, places = sampler(np.arange(count))
    assert ((places >= 0) & (places < 1)).all()
    for sample, (shard, place) in enumerate(zip(shards.tolist(), places.tolist(), strict=True)):
        assert sampler.coming_shards(sample, place, place)[0] == shard


def test_the_data_set_and_the_seed_decide_the_order() -> None:
    orders = [
        Sampler([500, 500], seed, name, 8)(np.arange(100))[1].tolist() for seed, name in ((1, "a"), (1, "b"), (2, "a"))
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


@given(count=st.integers(0, 1000), shares=st.integers(1, 50))
def test_shares_cover_everything_and_differ_by_one_at_most(count: int, shares: int) -> None:
    bounds = [split_range(count, shares, which) for which in range(shares)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == count
    assert all(left[1] == right[0] for left, right in zip(bounds, bounds[1:], strict=False))
    sizes = {stop - start for start, stop in bounds}
    assert max(sizes) - min(sizes) <= 1


WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6)


@given(weights=WEIGHTS, start=st.integers(0, 10**12))
@settings(max_examples=50)
def test_each_source_of_a_mixture_gives_its_samples_in_order_and_in_proportion(
    weights: list[float], start: int
) -> None:
    mixture = Mixture(weights)
    sources, numbers = mixture(np.arange(start, start + 2 * TABLE_SIZE))
    before = mixture.before(start)
    for source, weight in enumerate(weights):
        own = numbers[sources == source]
        assert own.tolist() == list(range(before[source], before[source] + len(own)))
        exact = weight / sum(weights) * 2 * TABLE_SIZE
        assert abs(len(own) - exact) <= 2 * len(weights) + 2  # its share of places is whole, and at least one
    early = [int((sources[:100] == source).sum()) for source in range(len(weights))]
    expected = [int((sources == source).sum()) / (2 * TABLE_SIZE) * 100 for source in range(len(weights))]
    # Up to any place a source has given its share of it to within (sources + 1) / 2: up to the time t, c * t rounded,
    # and t differs from the place by half a sample of each source. Between two places, to within twice that.
    assert np.abs(np.array(early) - expected).max() <= len(weights) + 1


@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=80), length=st.integers(2, 32))
@settings(max_examples=80)
def test_packed_rows_hold_every_token_as_a_target_once_and_predict_within_documents(
    lengths: list[int], length: int
) -> None:
    tokens = np.concatenate([[*range(1, size), 0] for size in lengths]).astype(np.uint16)  # the n-th is n, the last 0
    rows = DocumentRows(np.array(lengths), length)
    counted: Counter[int] = Counter()
    for number in range(rows.count):
        row = rows.read(tokens, number, 0)
        assert row.documents_BS is not None and row.positions_BS is not None
        targets, inputs = row.targets_BS[0], row.tokens_BS[0]
        real = targets != IGNORED
        counted.update(targets[real].tolist())
        documents, positions = row.documents_BS[0], row.positions_BS[0]
        follows = positions > 0
        assert (documents[1:][follows[1:]] == documents[:-1][follows[1:]]).all()
        assert (documents[1:][~follows[1:]] == documents[:-1][~follows[1:]] + 1).all()
        inside = real & follows
        assert (inputs[inside] == targets[np.flatnonzero(inside) - 1]).all()
        # What a piece begins with is the token before it: an end of text, or the same document's (n-1)-th.
        first = real & ~follows
        assert ((targets[first] == inputs[first] + 1) | (targets[first] == 0)).all()
    assert counted == Counter(tokens.tolist())


@pytest.mark.parametrize(("long_documents", "kept"), [("cut", (5, 19, 8, 16)), ("truncate", (5, 8, 8, 8)),
                                                      ("drop", (5, 0, 8, 0))])  # fmt: skip
def test_what_is_kept_of_documents_that_are_longer_than_a_row(long_documents: Any, kept: tuple[int, ...]) -> None:
    lengths = np.array([5, 19, 8, 16])
    tokens = np.arange(lengths.sum()).astype(np.uint16)
    rows = DocumentRows(lengths, 8, long_documents)
    targets = np.concatenate([rows.read(tokens, number, 99).targets_BS[0] for number in range(rows.count)])
    begins = np.cumsum(lengths) - lengths
    expected = np.concatenate([np.arange(begin, begin + count) for begin, count in zip(begins, kept, strict=True)])
    assert sorted(targets[targets != IGNORED]) == expected.tolist()
    assert not DocumentRows(np.array([9, 100]), 8, "drop").count


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=200))
@settings(max_examples=60)
def test_packing_fills_bins_and_overfills_none(sizes: list[int]) -> None:
    bins = best_fit(np.array(sizes), 40)
    filled = np.bincount(bins, weights=sizes)
    assert filled.max() <= 40 and filled.min() > 0
    assert (filled <= 20).sum() <= 1  # two that are at most half full would have gone together


def test_packing_many_documents_leaves_little_empty() -> None:
    sizes = np.random.default_rng(0).lognormal(5.5, 1.0, 5000).astype(np.int64).clip(2, 4096)
    filled = sizes.sum() / (4096 * (best_fit(sizes, 4096).max() + 1))
    assert filled > 0.99


def test_packing_changes_no_documents_loss_and_so_no_document_sees_another() -> None:
    lengths, end_of_text, generator = np.array([7, 20, 3, 9, 32, 5]), 17, np.random.default_rng(0)
    tokens = generator.integers(0, 50, lengths.sum()).astype(np.uint16)
    shape = tiny_training().model.resolve()
    model = Decoder(shape, 50, LENGTH)
    initialise(model, 1)

    def loss(rows: DocumentRows, stretch: np.ndarray) -> float:
        found = [micro_batch(rows.read(stretch, number, end_of_text, is_masked=False)) for number in range(rows.count)]
        batches = [(batch.tokens_BS, batch.targets_BS, batch.documents_BS, batch.positions_BS) for batch in found]
        with torch.no_grad():
            return sum(float(model(*batch)) for batch in batches)

    packed = DocumentRows(lengths, LENGTH)
    assert packed.count < len(lengths)
    ends = np.cumsum(lengths)
    alone = [loss(DocumentRows(lengths[n : n + 1], LENGTH), tokens[ends[n] - lengths[n] : ends[n]]) for n in range(6)]
    assert loss(packed, tokens) == pytest.approx(sum(alone), rel=1e-5)


def test_a_stream_is_cut_into_rows_that_each_have_the_token_after() -> None:
    assert [StreamRows(8).count(tokens) for tokens in (0, 8, 9, 16, 17)] == [0, 0, 1, 1, 2]
    row = StreamRows(4).read(np.arange(100, dtype=np.uint16), 2)
    assert (row.tokens_BS.tolist(), row.targets_BS.tolist()) == ([[8, 9, 10, 11]], [[9, 10, 11, 12]])


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[PreparedSource]:
    """Three prepared data sets of several small shards."""
    root = tmp_path_factory.mktemp("prepared")
    lines = tiny_text(30_000).splitlines()
    found: list[PreparedSource] = []
    for number, name in enumerate("abc"):
        documents = [" ".join(lines[start : start + 1 + start % 5]) for start in range(number, len(lines), 3 + number)]
        content = "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
        part = MixturePart(source=f"dataset:{name}", validation_fraction=0.1)
        tokenizer: Any = (
            ExistingTokenizer.from_file(found[0].folder / "tokenizer.json") if found else TokenizerSpec(vocab_size=300)
        )
        raw = RawObject.of("x.jsonl", content)
        Preparation([lambda raw=raw: [raw]], part, tokenizer, root / name, shard_bytes=4096).run()
        found.append(PreparedSource(part.source, root / name, None, ""))
    return found


def training_of(places: list[PreparedSource], packing: str, sequences: int = 12, **changes: Any) -> TrainingSpec:
    weights = (5, 2, 1)
    parts = [{"source": place.name, "weight": weight} for place, weight in zip(places, weights, strict=False)]
    data = {"mixture": parts, "packing": packing, "shuffle_shards": 2, **changes}
    tokens = sequences * LENGTH
    return TrainingSpec.model_validate({**TINY, "data": data, "sequence_length": LENGTH, "tokens_per_step": tokens})


def batches_of(corpus: Corpus, part: RankShare, step: int, schedule: BatchSizeSchedule) -> list[list[int]]:
    """Tokens, targets, documents and positions of each sequence that a rank is given for a step."""
    loader = Loader(corpus, schedule, part, torch.device("cpu"), step)
    try:
        return [row for batch in loader.next_step(step) for row in rows_of(batch)]
    finally:
        loader.close()


@pytest.mark.parametrize("packing", ["none", "documents"])
def test_the_places_of_a_micro_batch_are_those_of_its_rows(places: list[PreparedSource], packing: str) -> None:
    """Named from any rank, with sequences of a ramp that the ranks do not divide, after a rollback."""
    training = training_of(places, packing)
    schedule = BatchSizeSchedule(13, start=5, ramp_steps=6)
    rollbacks = [Rollback(attempt_id="a", generation=0, from_step=2, first_sequence=31)]
    corpus = Corpus(places, training, NOWHERE)
    sources = {source.name: source for source in corpus.sources}
    asked = Loader(corpus, schedule, RankShare(1, 3, 2), torch.device("cpu"), 4, rollbacks)
    for rank in range(3):
        loader = Loader(corpus, schedule, RankShare(rank, 3, 2), torch.device("cpu"), 4, rollbacks)
        batches = loader.next_step(4)
        for number, batch in enumerate(batches):
            found = []
            for name, shard, row in asked.places(4, rank * len(batches) + number):
                source = sources[name]
                (which,) = [n for n, each in enumerate(source.index.shards["train"]) if each.name == shard]
                found += rows_of(micro_batch(source.row(which, row)))
            assert found == rows_of(batch)
        loader.close()
    asked.close()


def rows_of(batch: MicroBatch) -> list[list[int]]:
    tensors = [tensor for tensor in vars(batch).values() if tensor is not None]
    return torch.cat(tensors, dim=1).tolist()


@pytest.mark.parametrize("packing", ["none", "documents"])
@pytest.mark.parametrize("num_sources", [1, 3])
@settings(max_examples=15)
@given(data=st.data())
def test_resizing_and_restarting_loses_and_repeats_no_sample_and_keeps_their_order(
    places: list[PreparedSource], packing: str, num_sources: int, data: st.DataObject
) -> None:
    """Each step is computed by any number of ranks in any number of micro-batches, each time by new loaders."""
    chosen = places[:num_sources]
    whole = reference(tuple(chosen), packing)
    training = training_of(chosen, packing)
    schedule = data.draw(st.sampled_from([BatchSizeSchedule(12), BatchSizeSchedule(12, start=8, ramp_steps=20)]))
    steps = data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=3))
    for step in steps:
        world = data.draw(st.integers(1, 8))
        micro_batch = data.draw(st.integers(1, 12))
        found = []
        for rank in range(world):
            part = RankShare(rank, world, micro_batch)
            found += batches_of(Corpus(chosen, training, NOWHERE), part, step, schedule)
        expected = whole[schedule.sequences_before(step) : schedule.sequences_before(step + 1)]
        assert sorted(found) == sorted(expected)


@lru_cache
def reference(places: tuple[PreparedSource, ...], packing: str) -> list[list[int]]:
    """Every sample of 40 steps, in one go."""
    corpus = Corpus(places, training_of(list(places), packing), NOWHERE)
    return rows_of(micro_batch(corpus.rows(np.arange(40 * 12))))


@pytest.mark.parametrize("packing", ["none", "documents"])
def test_an_epoch_of_each_source_of_a_mixture_holds_all_its_tokens_once(
    places: list[PreparedSource], packing: str
) -> None:
    training = training_of(places, packing)
    corpus = Corpus(places, training, NOWHERE)
    sources, numbers = corpus._mixture(np.arange(20_000))
    for which, source in enumerate(corpus.sources):
        own = np.flatnonzero((sources == which) & (numbers < source.num_rows))
        assert len(own) == source.num_rows
        seen = Counter(corpus.rows(own).targets_BS.ravel().tolist())
        seen.pop(IGNORED, None)
        index = DatasetIndex.read(places[which].folder)
        stored = [np.fromfile(places[which].folder / s.name, index.dtype) for s in index.shards["train"]]
        if packing == "none":  # the end of a shard that fills no row is left out, and its first token is no target
            stored = [tokens[1 : 1 + (len(tokens) - 1) // LENGTH * LENGTH] for tokens in stored]
        assert seen == Counter(np.concatenate(stored).tolist())


def test_the_fingerprint_of_a_mixture_follows_its_sources(places: list[PreparedSource]) -> None:
    prints = {
        Corpus(chosen, training_of(chosen, "none"), NOWHERE).fingerprint
        for chosen in (places, places[:1], places[:2], [places[1], places[0]])
    }
    assert len(prints) == 4
    assert DatasetIndex.read(places[0].folder).fingerprint in prints


@pytest.mark.parametrize("packing", ["none", "documents"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_validation_rows_are_shared_out_whole(places: list[PreparedSource], packing: str, world: int) -> None:
    data = training_of(places[:1], packing).data
    source = Source(places[0], "validation", data, LENGTH, NOWHERE)
    count = min(7, source.num_rows)
    shares = [validation_batches(source, 7, RankShare(rank, world, 2)) for rank in range(world)]
    assert len({len(batches) for batches in shares}) == 1
    counted = [batch for batches in shares for batch in batches if batch.counted]
    found = [row for batch in counted for row in rows_of(batch)]
    assert len(found) == count == len({tuple(row) for row in found})


def test_the_rows_of_packed_shards_are_counted_once_for_all_processes(places: list[PreparedSource]) -> None:
    data = training_of(places[:1], "documents").data
    index = DatasetIndex.read(places[0].folder)
    source = Source(places[0], "train", data, LENGTH, NOWHERE)
    kept = json.loads((places[0].folder / f"train-rows-{LENGTH}.json").read_text())
    lengths = DocumentLengths(places[0].folder, index, "train")
    assert source.rows == kept == [DocumentRows(each, LENGTH).count for each in lengths]
    without = Source(places[0], "train", data.model_copy(update={"long_documents": "drop"}), LENGTH, NOWHERE)
    assert without.rows == [DocumentRows(each, LENGTH, "drop").count for each in lengths] != kept
