"""Token ids of texts, and where each token begins: as the tokenizers library returns them, or, several times faster on
one core, by encoding each distinct word once."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

_MAX_WORDS = 300_000
"""Distinct words in memory, some 200 bytes each; above it they are encoded again."""
_DIGIT_GROUPS = {r"\p{N}{1,1}": "[0-9]", r"\p{N}{1,3}": "[0-9]{1,3}"}


class Encoded(NamedTuple):
    """Token ids of a text. `begins`: the first character of each token; empty where it is not requested."""

    ids: NDArray[np.uint32]
    begins: NDArray[np.int64]


@dataclass(frozen=True)
class EncodedTexts:
    """The tokens of texts, one text after the other, which another process sends in less time than many arrays.
    `ends`: of each text."""

    ids: NDArray[np.uint32]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def join(cls, texts: Sequence[Encoded]) -> "EncodedTexts":
        """Return the tokens of texts that were encoded one by one."""
        ids, begins = ([getattr(text, name) for text in texts] for name in Encoded._fields)
        return cls(
            np.concatenate([np.empty(0, dtype=np.uint32), *ids]),
            np.concatenate([np.empty(0, dtype=np.int64), *begins]),
            np.cumsum([len(each) for each in ids], dtype=np.int64),
        )

    def __iter__(self) -> Iterator[Encoded]:
        """Yield the tokens of each text."""
        start = 0
        for stop in self.ends.tolist():
            yield Encoded(self.ids[start:stop], self.begins[start:stop])
            start = stop


class LibraryEncoder:
    """Encodes texts by the tokenizers library, with its own threads. `tokenizer`: content of its file."""

    def __init__(self, tokenizer: str, *, has_begins: bool) -> None:
        self._tokenizer, self.has_begins = Tokenizer.from_str(tokenizer), has_begins

    def __call__(self, texts: Sequence[str]) -> EncodedTexts:
        """Return the tokens of each text, without those that the tokenizer adds at its beginning and end."""
        # Only the slower call returns the character offsets of tokens.
        encode = self._tokenizer.encode_batch if self.has_begins else self._tokenizer.encode_batch_fast
        found = []
        for encoding in encode(list(texts), add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=np.uint32)
            offsets = chain.from_iterable(encoding.offsets) if self.has_begins else ()
            begins = np.fromiter(offsets, dtype=np.int64)[::2]
            found.append(Encoded(ids, begins))
        return EncodedTexts.join(found)


class WordEncoder:
    """Encodes like LibraryEncoder, with equal results. Words of ASCII texts, as a byte-level BPE divides them, are
    looked up, which takes one core; other texts and other tokenizers are left to the library."""

    def __init__(self, tokenizer: str, *, has_begins: bool) -> None:
        """Set up for the content of a tokenizer's file."""
        self._library = LibraryEncoder(tokenizer, has_begins=has_begins)
        self._has_begins = has_begins
        self._tokenizer = Tokenizer.from_str(tokenizer)
        state = json.loads(tokenizer)
        self._words, self._added = _word_pattern(state), _added_tokens(state)
        self._characters = np.zeros(self._tokenizer.get_vocab_size(with_added_tokens=True), dtype=np.int64)
        for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if number < len(self._characters):
                self._characters[number] = len(token)  # byte-level: a character for each byte
        self._numbers: dict[str, int] = {}
        self._ids: NDArray[np.uint32] = np.empty(0, dtype=np.uint32)
        self._counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._begins: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def is_quick(self) -> bool:
        """Return whether words are looked up: the tokenizer divides texts in a way that is known here."""
        return self._words is not None

    def __call__(self, texts: Sequence[str]) -> EncodedTexts:
        """Return the tokens of each text, without those that the tokenizer adds at its beginning and end."""
        if self._words is None:
            return self._library(texts)
        is_ascii = [text.isascii() for text in texts]
        if all(is_ascii):
            return self._encode(list(texts))
        quick = iter(self._encode([text for text, plain in zip(texts, is_ascii, strict=True) if plain]))
        slow = iter(self._library([text for text, plain in zip(texts, is_ascii, strict=True) if not plain]))
        return EncodedTexts.join([next(quick) if plain else next(slow) for plain in is_ascii])

    def _encode(self, texts: list[str]) -> EncodedTexts:
        words, ends = self._divide(texts)
        self._learn(words)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), dtype=np.int64, count=len(words))
        counts = self._counts[numbers]
        after = np.cumsum(counts)
        places = np.arange(counts.sum()) + np.repeat(self._begins[numbers] - (after - counts), counts)
        ids = self._ids[places]
        stops = np.append(0, after)[np.array(ends, dtype=np.int64)]
        if not self._has_begins:
            return EncodedTexts(ids, np.empty(0, dtype=np.int64), stops)
        sizes = np.append(0, np.cumsum(self._characters[ids]))
        starts = np.append(0, stops[:-1])[: len(stops)]
        begins = sizes[:-1] - np.repeat(sizes[starts], stops - starts)
        found = EncodedTexts(ids, begins, stops)
        if (sizes[stops] - sizes[starts]).tolist() == list(map(len, texts)):
            return found
        return self._library(texts)  # a vocabulary without some bytes leaves them out

    def _divide(self, texts: list[str]) -> tuple[list[str], list[int]]:
        """Return the words of all texts, and how many there are up to the end of each."""
        assert self._words is not None, "the caller has looked"
        find, added = self._words.findall, self._added
        words: list[str] = []
        ends = []
        for text in texts:
            if added is None:
                words += find(text)
            else:
                for number, piece in enumerate(added.split(text)):
                    if number % 2:
                        words.append(piece)
                    else:
                        words += find(piece)
            ends.append(len(words))
        return words, ends

    def _learn(self, words: list[str]) -> None:
        """Encode the words that are not known yet."""
        distinct = set(words)
        if len(self._numbers) + len(distinct) > _MAX_WORDS:
            self._forget()
        new = [word for word in distinct if word not in self._numbers]
        if not new:
            return
        found = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(new, add_special_tokens=False)]
        counts = np.array([len(ids) for ids in found], dtype=np.int64)
        first = len(self._ids)
        self._numbers.update(zip(new, range(len(self._numbers), len(self._numbers) + len(new)), strict=True))
        self._ids = np.concatenate([self._ids, np.fromiter(chain.from_iterable(found), dtype=np.uint32)])
        self._counts = np.concatenate([self._counts, counts])
        self._begins = np.concatenate([self._begins, first + np.cumsum(counts) - counts])

    def _forget(self) -> None:
        self._numbers, self._ids = {}, self._ids[:0]
        self._counts, self._begins = self._counts[:0], self._begins[:0]


def _word_pattern(state: dict[str, Any]) -> re.Pattern[str] | None:
    """Return how a tokenizer divides ASCII text into words that it encodes one by one, None if that is not known.

    The pattern is that of GPT-2, of which letters, digits and spaces are those of ASCII here.
    """
    stages = state["pre_tokenizer"] or {"type": "none"}
    stages = stages["pretokenizers"] if stages["type"] == "Sequence" else [stages]
    last = {"add_prefix_space": False, "use_regex": True, **stages[-1]}
    is_plain = state["model"]["type"] == "BPE" and not state["model"].get("dropout") and state["normalizer"] is None
    is_byte_level = last["type"] == "ByteLevel" and not last["add_prefix_space"] and last["use_regex"]
    if not is_plain or not is_byte_level or state["truncation"] or state["padding"] or _has_rules(state):
        return None
    if len(stages) == 1:
        return re.compile(r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
    digits = _DIGIT_GROUPS.get(stages[0].get("pattern", {}).get("Regex", ""))
    if len(stages) > 2 or digits is None or stages[0]["behavior"] != "Isolated" or stages[0]["invert"]:
        return None
    # Numbers are cut out first; what is before one ends there.
    return re.compile(rf"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+|{digits}| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+", re.ASCII)


def _has_rules(state: dict[str, Any]) -> bool:
    """Return whether added tokens take spaces, or are words of their own only, or are found in two steps."""
    added = state["added_tokens"]
    return any(each["lstrip"] or each["rstrip"] or each["single_word"] for each in added) or (
        len({each["normalized"] for each in added}) > 1
    )


def _added_tokens(state: dict[str, Any]) -> re.Pattern[str] | None:
    """Return what finds the added tokens in a text, the longest at each place."""
    contents = sorted((each["content"] for each in state["added_tokens"]), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, contents)) + ")") if contents else None
