"""Texts of which the words are looked up have exactly the tokens that the tokenizers library returns."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.trainer.runs import tiny_text
from trainer.contract.data import TokenizerSpec
from trainer.data.encoding import LibraryEncoder, WordEncoder
from trainer.data.tokenizer import train_tokenizer

PIECES = [
    "<|endoftext|>", "<s>", "<s>>", "<|end", "  ", " ", "\n", "\t", "\x1c", "\x00", "'s", "'", "'ll", "123", "4567",
    "word", "of", "é", "你好", "!", "<", "?!",
]  # fmt: skip


def random_texts(count: int) -> list[str]:
    chosen = random.Random(7)
    return ["".join(chosen.choices(PIECES, k=chosen.randrange(14))) for _ in range(count)]


def tokenizer_of(digits: str = "whole") -> str:
    spec = TokenizerSpec.model_validate({"vocab_size": 500, "digits": digits, "special_tokens": ["<s>", "<s>>"]})
    return train_tokenizer([tiny_text(20_000), "they'll say it's 12345 of them"], spec).to_str()


def assert_equal(tokenizer: str, texts: list[str], *, has_begins: bool) -> None:
    quick, library = (each(tokenizer, has_begins=has_begins) for each in (WordEncoder, LibraryEncoder))
    for text, found, expected in zip(texts, quick(texts), library(texts), strict=True):
        assert np.array_equal(found.ids, expected.ids), text
        assert np.array_equal(found.begins, expected.begins), text
        assert found.ids.dtype == expected.ids.dtype == np.uint32


@pytest.mark.parametrize("digits", ["whole", "single", "triples"])
@pytest.mark.parametrize("has_begins", [True, False])
def test_looked_up_words_have_the_tokens_of_the_library(digits: str, has_begins: bool) -> None:
    assert WordEncoder(tokenizer_of(digits), has_begins=has_begins).is_quick
    assert_equal(tokenizer_of(digits), [*random_texts(1500), tiny_text(5000), ""], has_begins=has_begins)


def test_a_word_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encoder = WordEncoder(tokenizer_of(), has_begins=False)

    class Counting:
        def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> Any:
            encoded.extend(texts)
            return Tokenizer.from_str(tokenizer_of()).encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(encoder, "_tokenizer", Counting())
    first = encoder(["one two one", "two one"])
    assert sorted(encoded) == [" one", " two", "one", "two"]
    assert [each.ids.tolist() for each in encoder(["one two one", "two one"])] == [each.ids.tolist() for each in first]
    assert len(encoded) == 4


def lstrip(state: dict[str, Any]) -> None:
    state["added_tokens"][0]["lstrip"] = True


def dropout(state: dict[str, Any]) -> None:
    state["model"]["dropout"] = 0.1


def lowercase(state: dict[str, Any]) -> None:
    state["normalizer"] = {"type": "Lowercase"}


def prefix_space(state: dict[str, Any]) -> None:
    state["pre_tokenizer"]["add_prefix_space"] = True


def other_words(state: dict[str, Any]) -> None:
    state["pre_tokenizer"] = {"type": "Whitespace"}


@pytest.mark.parametrize("change", [lstrip, dropout, lowercase, prefix_space, other_words])
def test_a_tokenizer_with_other_rules_is_left_to_the_library(change: Callable[[dict[str, Any]], None]) -> None:
    state = json.loads(tokenizer_of())
    change(state)
    assert not WordEncoder(json.dumps(state), has_begins=True).is_quick
    if change is not dropout:
        assert_equal(json.dumps(state), random_texts(100), has_begins=True)


def test_a_vocabulary_without_some_bytes_has_the_places_of_the_library() -> None:
    state = json.loads(tokenizer_of())
    state["model"]["vocab"] = {token: number for token, number in state["model"]["vocab"].items() if token != "w"}
    state["model"]["merges"] = [pair for pair in state["model"]["merges"] if "w" not in "".join(pair)]
    assert_equal(json.dumps(state), ["two words, one of which has a w", *random_texts(50)], has_begins=True)
