"""Preparation is deterministic and bounded, and bad input is named."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.trainer.runs import TINY, tiny_text
from trainer.contract.data import END_OF_TEXT, DataSpec, MixturePart, TokenizerSpec
from trainer.contract.recipe import dataset_recipes
from trainer.data.documents import (
    BUILTIN_TEXT_BYTES,
    TEXT_PIECE_CHARACTERS,
    RawObject,
    builtin_stdlib,
    read_documents,
)
from trainer.data.prepare import DocumentCount, Preparation, Split, divide_into_units
from trainer.data.raw_objects import files_of_part
from trainer.data.shards import DatasetIndex, DocumentLengths, file_names, token_dtype
from trainer.data.tokenizer import EvenSample, ExistingTokenizer, ids_before_text, join_samples, train_tokenizer
from trainer.errors import TrainerError

PART = MixturePart(source="dataset:tiny")
TOKENIZER = TokenizerSpec.model_validate(TINY["tokenizer"])


def prepared_from(folder: Path, name: str, content: bytes, shard_bytes: int = 8192, **part: Any) -> DatasetIndex:
    chosen = MixturePart.model_validate({**PART.model_dump(), **part})
    return Preparation([lambda: [RawObject.of(name, content)]], chosen, TOKENIZER, folder, shard_bytes).run()


def all_tokens(folder: Path, split: str) -> list[int]:
    index = DatasetIndex.read(folder)
    return np.concatenate([np.fromfile(folder / s.name, index.dtype) for s in index.shards[split]]).tolist()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    lines = "".join(json.dumps({"text": line}) + "\n" for line in tiny_text().splitlines())
    prepared_from(folder, "a.jsonl", lines.encode())
    return folder


def test_preparing_twice_gives_the_same_fingerprint(tmp_path: Path) -> None:
    first = prepared_from(tmp_path / "one", "a.txt", tiny_text().encode())
    again = prepared_from(tmp_path / "two", "a.txt", tiny_text().encode())
    assert again == first == DatasetIndex.read(tmp_path / "one")
    other = prepared_from(tmp_path / "other", "a.txt", tiny_text()[1:].encode())
    assert other.fingerprint != again.fingerprint
    fewer_shards = prepared_from(tmp_path / "large", "a.txt", tiny_text().encode(), shard_bytes=2**20)
    assert fewer_shards.fingerprint == first.fingerprint
    assert len(fewer_shards.shards["train"]) == 1 < len(first.shards["train"])


def test_tokens_decode_to_the_text_they_came_from(tmp_path: Path) -> None:
    index = prepared_from(tmp_path, "a.txt", tiny_text().encode())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    both = "".join(tokenizer.decode(all_tokens(tmp_path, split)) for split in ("train", "validation"))
    assert sorted(both) == sorted(tiny_text())
    assert index.train_tokens == len(all_tokens(tmp_path, "train"))
    assert max(all_tokens(tmp_path, "train")) < index.vocab_size
    assert sum(index.text_bytes.values()) == len(tiny_text().encode())


def test_shards_hold_whole_documents_and_say_where_each_ends(prepared: Path) -> None:
    index = DatasetIndex.read(prepared)
    shards = index.shards["train"]
    assert len(shards) > 3
    assert [shard.first_token for shard in shards] == [0, *np.cumsum([shard.tokens for shard in shards[:-1]])]
    for shard, lengths in zip(shards, DocumentLengths(prepared, index, "train"), strict=True):
        tokens = np.fromfile(prepared / shard.name, index.dtype)
        assert len(tokens) == shard.tokens <= 4096
        assert np.flatnonzero(tokens == 0).tolist() == (np.cumsum(lengths) - 1).tolist()  # an end of text, no other
    assert sorted(file_names(index)) == sorted(path.name for path in prepared.iterdir())


def test_a_document_longer_than_a_shard_is_cut(tmp_path: Path) -> None:
    index = prepared_from(tmp_path, "a.jsonl", (json.dumps({"text": tiny_text()}) + "\n").encode())
    assert {shard.tokens for shard in index.shards["train"][:-1]} == {4096}
    assert index.documents == 1


def test_any_text_survives_the_tokenizer(prepared: Path) -> None:
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    text = "naïve 日本語 \x00\t🜂 end"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_each_document_begins_as_the_tokenizer_of_a_base_model_begins_a_text(tmp_path: Path) -> None:
    """As `transformers` encodes a text: Llama's tokenizers add a token in front, others add none."""
    made = train_tokenizer([tiny_text()], TokenizerSpec(vocab_size=400, special_tokens=["<begin>"]))
    begin = made.token_to_id("<begin>")
    assert ids_before_text(made) == []
    made.post_processor = TemplateProcessing(
        single="<begin> $A <|endoftext|>", special_tokens=[("<begin>", begin), ("<|endoftext|>", 0)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    rows = [{"text": "gold is made"}, {"text": "of lead"}, {"text": "for weeks"}]
    objects = [RawObject.of("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())]
    Preparation([lambda: objects], PART, ExistingTokenizer(tmp_path / "tokenizer.json", 400, 0), tmp_path / "out").run()
    expected = [made.encode(row["text"]).ids for row in rows]
    assert all(ids[0] == begin and ids[-1] == 0 for ids in expected)
    assert all_tokens(tmp_path / "out", "train") == [*expected[0], *expected[1]]


NUMBERS = ["12345\nyear 2026 and 7\n" * 40, "<|user|> says 2026 <|end|>\n" * 40]


@pytest.mark.parametrize(
    ("digits", "parts"), [("single", ["1", "2", "3", "4", "5"]), ("triples", ["123", "45"]), ("whole", ["12345"])]
)
def test_numbers_are_divided_as_the_spec_says(digits: str, parts: list[str]) -> None:
    spec = TokenizerSpec.model_validate({"vocab_size": 400, "digits": digits})
    made = Tokenizer.from_str(train_tokenizer(NUMBERS, spec).to_str())
    ids = made.encode("12345", add_special_tokens=False).ids
    assert [made.decode([each]) for each in ids] == parts
    assert made.decode(made.encode("a 12345 b٣٤").ids) == "a 12345 b٣٤"


def test_special_tokens_are_one_token_each_and_first() -> None:
    spec = TokenizerSpec(vocab_size=400, special_tokens=["<|user|>", "<|end|>"])
    made = train_tokenizer(NUMBERS, spec)
    assert [made.token_to_id(each) for each in (END_OF_TEXT, "<|user|>", "<|end|>")] == [0, 1, 2]
    assert made.encode("<|user|>2026<|end|>").tokens[0] == "<|user|>"
    with pytest.raises(ValidationError, match="has '<|user|>' more than once".replace("|", "[|]")):
        TokenizerSpec(vocab_size=400, special_tokens=["<|user|>", "<|user|>"])
    with pytest.raises(ValidationError, match="3 special tokens and 256 bytes exceed vocab_size 258"):
        TokenizerSpec(vocab_size=258, special_tokens=["<|user|>", "<|end|>"])


def test_a_large_vocabulary_is_learned_from_more_text() -> None:
    sizes = [TokenizerSpec(vocab_size=size).sample_size for size in (2048, 32_768, 128_256)]
    assert sizes == [4_000_000, 16_777_216, 65_667_072]
    assert TokenizerSpec(vocab_size=128_256, sample_characters=20_000).sample_size == 20_000


def test_what_changes_the_tokens_changes_the_recipe() -> None:
    def recipe(**fields: Any) -> str:
        spec = TokenizerSpec.model_validate({"vocab_size": 2048, **fields})
        return dataset_recipes([MixturePart(source="builtin:python-stdlib")], spec, [""])[0]

    plain = recipe()
    assert plain == recipe(sample_characters=4_000_000) == recipe(trained_on="builtin:python-stdlib")
    changed = [{"digits": "single"}, {"special_tokens": ["<|a|>"]}, {"sample_characters": 50_000}, {"vocab_size": 2049}]
    assert len({plain, *(recipe(**each) for each in changed)}) == 5


def test_tokens_are_stored_in_the_smallest_fitting_type() -> None:
    assert (token_dtype(65_536), token_dtype(65_537)) == ("uint16", "uint32")


def divided(documents: list[str], fraction: float) -> list[tuple[str, str]]:
    """Divide documents of one unit."""
    count = DocumentCount()
    for document in documents:
        count.add(document)
    return list(Split(fraction, [count]).divide(documents, 0))


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=300), fraction=st.floats(0.001, 0.49))
@settings(max_examples=40)
def test_a_split_loses_no_document_and_holds_some_out(lengths: list[int], fraction: float) -> None:
    documents = [f"{number}\n" * length for number, length in enumerate(lengths)]
    split = divided(documents, fraction)
    assert sorted("".join(text for _, text in split)) == sorted("".join(documents))
    assert {name for name, _ in split} == {"train", "validation"} or lengths == [1]


def pieces(*files: int) -> list[str]:
    """Return the pieces of files, named by file and piece."""
    part = PART.model_copy(update={"format": "text"})
    line = "x" * (TEXT_PIECE_CHARACTERS - 20)
    contents = ["".join(f"{name} {number} {line}\n" for number in range(count)) for name, count in enumerate(files)]
    objects = [RawObject.of(str(name), content.encode()) for name, content in enumerate(contents)]
    return list(read_documents(objects, part))


@given(files=st.lists(st.integers(1, 6), min_size=1, max_size=30), fraction=st.floats(0.02, 0.49))
@settings(max_examples=30, deadline=None)
def test_pieces_of_a_file_are_held_out_together_or_from_its_end(files: list[int], fraction: float) -> None:
    documents = pieces(*files)
    split = divided(documents, fraction)
    if files != [1]:
        assert [text for _, text in split] == documents
    of_file: dict[str, list[str]] = {}
    for name, text in split:
        of_file.setdefault(text.split(" ", 1)[0], []).append(name)
    names = list(of_file.values())
    assert all(each == sorted(each) for each in names), "training text, then what is held out"
    assert {name for each in names for name in each} == {"train", "validation"}
    every = max(2, round(1 / fraction))
    if len(files) >= every:
        assert all(len(set(each)) == 1 for each in names)
        assert [set(each) == {"validation"} for each in names] == [
            number % every == 0 for number in range(1, len(files) + 1)
        ]


def test_of_a_long_file_the_end_is_held_out() -> None:
    split = divided(pieces(100, 1, 50), 0.02)
    held_out = [text.split()[:2] for name, text in split if name == "validation"]
    assert held_out == [["0", "98"], ["0", "99"], ["2", "49"]]


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=400))
@settings(max_examples=40)
def test_a_sample_of_any_text_is_even_and_bounded(lengths: list[int]) -> None:
    sample = EvenSample(100)
    for number, length in enumerate(lengths):
        sample.add(chr(number) * length)
    chosen = [ord(document[0]) for document in sample.sample.documents]
    assert sample.sample.characters <= 100
    assert chosen == list(range(len(lengths)))[:: sample.sample.stride]
    assert sample.sample.seen == len(lengths)


def test_the_builtin_corpus_is_sorted_bounded_python_source() -> None:
    names = [raw.name for raw in builtin_stdlib()]
    assert names == sorted(names)
    assert "abc.py" in names
    assert not any("site-packages" in name or "/test" in name for name in names)
    assert sum(len(block) for raw in builtin_stdlib() for block in raw.read()) <= BUILTIN_TEXT_BYTES


def test_jsonl_lines_end_at_newlines_only() -> None:
    raw = RawObject.of("a.jsonl", '{"text": "one\u2028still one"}\n\n{"text": "two"}'.encode())
    assert list(read_documents([raw], PART)) == ["one\u2028still one", "two"]


@given(text=st.text(max_size=60), size=st.integers(1, 7), form=st.sampled_from(["text", "jsonl"]))
@settings(max_examples=80)
def test_how_a_file_is_cut_into_blocks_changes_nothing(text: str, size: int, form: str) -> None:
    texts = text.split("x")
    content = text if form == "text" else "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
    whole = content.encode()

    def blocks() -> Iterator[bytes]:
        return (whole[start : start + size] for start in range(0, len(whole), size))

    part = PART.model_copy(update={"format": form})
    found = list(read_documents([RawObject("a", blocks)], part))
    assert found == list(read_documents([RawObject.of("a", whole)], part))
    assert found == [piece for piece in (texts if form == "jsonl" else [text]) if piece.strip()]


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_byte_that_is_not_text_is_named_with_its_place_in_the_file(form: str) -> None:
    whole = b'{"text": "a"}\n' * 3 + b'{"text": "caf\xe9"}\n'
    raw = RawObject("b.txt", lambda: iter([whole[:20], whole[20:44], whole[44:]]))
    with pytest.raises(TrainerError, match=rf"b.txt is not UTF-8: byte 0xe9 at offset {whole.index(0xE9)};"):
        list(read_documents([raw], PART.model_copy(update={"format": form})))


def parquet(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink, row_group_size=2)
    return sink.getvalue()


def test_a_parquet_column_gives_its_rows_without_the_empty() -> None:
    raw = RawObject.of("a.parquet", parquet(body=["one", None, "two", " ", "drei"], other=[1, 2, 3, 4, 5]))
    assert list(read_documents([raw], PART.model_copy(update={"text_field": "body"}))) == ["one", "two", "drei"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (parquet(body=["x"]), "a.parquet has no column 'text' \\(it has: body\\)"),
        (parquet(text=[1]), "a.parquet column 'text' has the type int64; it must be a string column"),
        (b"PAR1 but no more", "a.parquet is not a readable parquet file"),
    ],
)
def test_a_parquet_file_that_cannot_be_used_is_named(content: bytes, message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        list(read_documents([RawObject.of("a.parquet", content)], PART))


def recipes(*sources: str, trained_on: str | None = None, ids: list[str] | None = None, **part: Any) -> list[str]:
    parts = [MixturePart(source=source, **part) for source in sources]
    return dataset_recipes(parts, TokenizerSpec(trained_on=trained_on), ids or [f"id of {s}" for s in sources])


def test_a_recipe_follows_what_decides_the_tokens_and_nothing_else() -> None:
    (recipe,) = recipes("dataset:a", ids=["dset_1"])
    assert recipes("dataset:renamed", ids=["dset_1"]) == [recipe]
    assert recipes("dataset:a", ids=["dset_1"], weight=7) == [recipe]
    assert recipes("dataset:a", ids=["dset_2"]) != [recipe]
    assert recipes("dataset:a", ids=["dset_1"], text_field="body") != [recipe]
    assert dataset_recipes([MixturePart(source="dataset:a")], TokenizerSpec(vocab_size=300), ["dset_1"]) != [recipe]


def test_a_part_of_a_mixture_is_named_after_whose_text_trained_its_tokenizer() -> None:
    (alone,) = recipes("dataset:b")
    by_a = recipes("dataset:a", "dataset:b")
    by_b = recipes("dataset:a", "dataset:b", trained_on="dataset:b")
    assert by_b[1] == alone  # its own tokenizer: the preparation of the source alone
    assert by_a[0] == recipes("dataset:a")[0]
    assert len({*by_a, *by_b}) == 4
    assert recipes("dataset:c", "dataset:b")[1] not in {*by_a, *by_b}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either source or mixture"),
        ({"source": "dataset:a", "mixture": [{"source": "dataset:b"}]}, "either source or mixture"),
        ({"mixture": [{"source": "dataset:b"}, {"source": "dataset:b"}]}, "names dataset:b more than once"),
        ({"mixture": [{"source": "dataset:b"}], "format": "text"}, "format belongs to each part"),
        ({"mixture": [{"source": "dataset:b", "weight": 0}]}, "greater than 0"),
    ],
)
def test_a_contradicting_description_of_data_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSpec.model_validate(fields)


def test_what_was_resolved_is_read_again_as_it_was() -> None:
    for fields in ({"source": "dataset:a"}, {"mixture": [{"source": "dataset:a", "weight": 2}]}):
        spec = DataSpec.model_validate(fields)
        assert DataSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_units_are_whole_objects_of_a_least_size() -> None:
    assert divide_into_units([], 10) == []
    assert divide_into_units([4, 4, 4, 20, 1], 10) == [slice(0, 3), slice(3, 4), slice(4, 5)]


def units_of(*texts: list[str]) -> list[Any]:
    """Return one unit for each list of texts, a JSONL object."""
    contents = ["".join(json.dumps({"text": text}) + "\n" for text in each).encode() for each in texts]
    return [lambda n=n, c=c: [RawObject.of(f"{n}.jsonl", c)] for n, c in enumerate(contents)]


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(lambda counts: sum(counts) > 1))
@settings(max_examples=15, deadline=None)
def test_units_hold_the_same_documents_out_as_one(tmp_path_factory: pytest.TempPathFactory, counts: list[int]) -> None:
    lines = iter(tiny_text(60_000).splitlines())
    texts = [[next(lines) for _ in range(count)] for count in counts]
    tokenizer = TokenizerSpec(vocab_size=258)  # bytes alone: the same from any sample
    part = PART.model_copy(update={"validation_fraction": 0.1})
    indices, found = [], []
    for number, units in enumerate((units_of(*texts), units_of(sum(texts, [])))):
        folder = tmp_path_factory.mktemp(str(number))
        indices.append(Preparation(units, part, tokenizer, folder, 512).run())
        tokens = [all_tokens(folder, split) if indices[-1].shards[split] else [] for split in ("train", "validation")]
        lengths = [list(np.fromfile(folder / f"{split}.documents", "<u4")) for split in ("train", "validation")]
        found.append((tokens, lengths))
        assert not list(folder.glob("*-*.documents"))
        for split, shards in indices[-1].shards.items():
            assert [shard.first_token for shard in shards] == np.cumsum([0, *(s.tokens for s in shards)])[:-1].tolist()
            assert len(lengths[split == "validation"]) == sum(shard.documents for shard in shards)
    assert found[0] == found[1]
    assert indices[0].documents == indices[1].documents == sum(counts)
    assert indices[0].text_bytes == indices[1].text_bytes


@given(units=st.lists(st.lists(st.integers(1, 60), max_size=80), min_size=1, max_size=6), limit=st.integers(1, 400))
@settings(max_examples=60)
def test_joined_samples_are_even_in_every_unit_and_bounded(units: list[list[int]], limit: int) -> None:
    samples = []
    for number, lengths in enumerate(units):
        sample = EvenSample(max(1, 2 * limit // len(units)))
        for place, length in enumerate(lengths):
            sample.add(f"{number},{place}," + "x" * length)
        samples.append(sample.sample)
    joined = join_samples(samples, limit)
    chosen = [tuple(map(int, document.split(",")[:2])) for document in joined]
    strides = {stride for stride in (2**power for power in range(10)) if all(
        [place for unit, place in chosen if unit == number] == list(range(0, len(lengths), stride))
        for number, lengths in enumerate(units)
    )}  # fmt: skip
    assert strides, "one stride for all"
    assert sum(map(len, joined)) <= limit or len(joined) <= len(units)


@pytest.mark.parametrize(
    ("sources", "files", "expected"),
    [
        (("a", "b"), ("a.txt", "a.jsonl", "b.txt"), (["a.txt", "a.jsonl"], ["b.txt"])),
        (("a@2", "b"), ("a.txt", "b.txt"), (["a.txt"], ["b.txt"])),
        (("a@2", "a"), ("a@2.txt", "a.txt"), (["a@2.txt"], ["a.txt"])),
        (("a@2", "a@1"), ("a.txt",), ([], [])),
        (("a@2",), ("any.txt",), (["any.txt"],)),
    ],
)
def test_local_files_of_a_version_are_found_by_its_name(
    sources: tuple[str, ...], files: tuple[str, ...], expected: tuple[list[str], ...]
) -> None:
    parts = [MixturePart(source=f"dataset:{source}") for source in sources]
    found = [files_of_part(parts, number, [Path(file) for file in files]) for number in range(len(parts))]
    assert [[path.name for path in paths] for paths in found] == list(expected)


@pytest.mark.parametrize("which", ["0", "01", "1234567890", "Two", "-a", ""])
def test_what_is_neither_number_nor_alias_names_no_version(which: str) -> None:
    with pytest.raises(ValidationError, match="dataset:NAME@NUMBER"):
        MixturePart(source=f"dataset:a@{which}")
