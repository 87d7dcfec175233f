"""The order of the data is exact, and preparation is deterministic."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.trainer.runs import tiny_text, tiny_training
from trainer.contract.data import DataSpec, TokenizerSpec
from trainer.contract.optimisation import StepSizes
from trainer.contract.recipe import dataset_recipe
from trainer.data.documents import BUILTIN_TEXT_BYTES, RawObject, builtin_stdlib, read_documents
from trainer.data.permutation import Permutation
from trainer.data.prepare import prepare, split_documents
from trainer.data.sampler import Sampler, num_sequences, share
from trainer.data.shards import DatasetIndex, open_split, token_dtype


@given(size=st.integers(1, 3000), key=st.text(max_size=8))
@settings(max_examples=50, deadline=None)
def test_a_permutation_takes_every_value_once(size: int, key: str) -> None:
    assert sorted(Permutation(size, key)(np.arange(size))) == list(range(size))


@given(size=st.integers(1, 2**62), data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_permutation_of_any_size_stays_inside(size: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    image = Permutation(size, "k")(np.array(index))
    assert len(set(image.tolist())) == len(index)
    assert ((image >= 0) & (image < size)).all()


def test_another_key_gives_another_order() -> None:
    index = np.arange(1000)
    moved = Permutation(1000, "a")(index) == Permutation(1000, "b")(index)
    assert moved.sum() < 20


@given(sequences=st.integers(1, 200), per_step=st.integers(1, 40), steps=st.integers(1, 20), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_every_epoch_sees_each_sequence_once(sequences: int, per_step: int, steps: int, seed: int) -> None:
    sampler = Sampler(sequences, StepSizes(per_step), seed, "fingerprint")
    order = np.concatenate([sampler.sequences(step, 0, per_step) for step in range(steps)])
    for start in range(0, len(order) - sequences + 1, sequences):
        assert sorted(order[start : start + sequences]) == list(range(sequences))


@given(per_step=st.integers(8, 40), worlds=st.lists(st.integers(1, 8), min_size=1, max_size=6), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_no_sample_is_lost_or_repeated_when_the_number_of_ranks_changes(
    per_step: int, worlds: list[int], seed: int
) -> None:
    """Each entry of `worlds` is the number of ranks that computes one step."""
    sampler = Sampler(97, StepSizes(per_step), seed, "fingerprint")
    for step, world in enumerate(worlds):
        shares = [sampler.sequences(step, *share(per_step, world, rank)) for rank in range(world)]
        assert np.array_equal(np.concatenate(shares), sampler.sequences(step, 0, per_step))


@given(count=st.integers(0, 1000), shares=st.integers(1, 50))
def test_shares_cover_everything_and_differ_by_one_at_most(count: int, shares: int) -> None:
    bounds = [share(count, shares, which) for which in range(shares)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == count
    assert all(left[1] == right[0] for left, right in zip(bounds, bounds[1:], strict=False))
    sizes = {stop - start for start, stop in bounds}
    assert max(sizes) - min(sizes) <= 1


def test_the_data_set_decides_the_order_too() -> None:
    first = Sampler(1000, StepSizes(100), 1, "one").sequences(0, 0, 100)
    assert not np.array_equal(first, Sampler(1000, StepSizes(100), 1, "other").sequences(0, 0, 100))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare([RawObject("a.txt", tiny_text().encode())], tiny_training(), folder)
    return folder


def test_preparing_twice_gives_the_same_fingerprint(prepared: Path, tmp_path: Path) -> None:
    again = prepare([RawObject("a.txt", tiny_text().encode())], tiny_training(), tmp_path)
    assert again == DatasetIndex.read(prepared)
    other = prepare([RawObject("a.txt", tiny_text()[1:].encode())], tiny_training(), tmp_path / "other")
    assert other.fingerprint != again.fingerprint


def test_tokens_decode_to_the_text_they_came_from(prepared: Path) -> None:
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    index = DatasetIndex.read(prepared)
    both = "".join(tokenizer.decode(open_split(prepared, split).tolist()) for split in ("train", "validation"))
    assert sorted(both) == sorted(tiny_text())
    assert index.train_tokens == len(open_split(prepared, "train"))
    assert open_split(prepared, "train").max() < index.vocab_size


def test_any_text_survives_the_tokenizer(prepared: Path) -> None:
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    text = "naïve 日本語 \x00\t🜂 end"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_tokens_are_stored_in_the_smallest_fitting_type() -> None:
    assert (token_dtype(65_536), token_dtype(65_537)) == ("uint16", "uint32")


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=300), fraction=st.floats(0.001, 0.49))
@settings(max_examples=40, deadline=None)
def test_a_split_loses_no_document_and_holds_some_out(lengths: list[int], fraction: float) -> None:
    documents = [f"{number}\n" * length for number, length in enumerate(lengths)]
    train, validation = split_documents(documents, fraction)
    assert sorted("".join(train + validation)) == sorted("".join(documents))
    assert train and validation


def test_the_builtin_corpus_is_sorted_bounded_python_source() -> None:
    names = [raw.name for raw in builtin_stdlib()]
    assert names == sorted(names)
    assert "abc.py" in names
    assert not any("site-packages" in name or "/test" in name for name in names)
    assert sum(len(raw.content) for raw in builtin_stdlib()) <= BUILTIN_TEXT_BYTES


def test_jsonl_lines_end_at_newlines_only() -> None:
    raw = RawObject("a.jsonl", '{"text": "one\u2028still one"}\n\n{"text": "two"}'.encode())
    assert list(read_documents([raw], DataSpec(source="dataset:x"))) == ["one\u2028still one", "two"]


def test_a_sequence_needs_the_token_after_it() -> None:
    assert [num_sequences(tokens, 8) for tokens in (8, 9, 16, 17)] == [0, 1, 1, 2]


def test_a_recipe_follows_what_decides_the_tokens_and_nothing_else() -> None:
    data, tokenizer = DataSpec(source="dataset:a"), TokenizerSpec()
    recipe = dataset_recipe(data, tokenizer, "dset_1")
    assert dataset_recipe(DataSpec(source="dataset:renamed"), tokenizer, "dset_1") == recipe
    assert dataset_recipe(data, tokenizer, "dset_2") != recipe
    assert dataset_recipe(data, TokenizerSpec(vocab_size=300), "dset_1") != recipe
    assert dataset_recipe(DataSpec(source="dataset:a", text_field="body"), tokenizer, "dset_1") != recipe
