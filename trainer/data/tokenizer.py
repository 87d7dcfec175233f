"""A byte-level BPE trained on the data itself: every text is representable and decodes to itself."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.contract.data import END_OF_TEXT, TokenizerSpec
from trainer.contract.hugging_face import CONFIG_NAME, TOKENIZER_NAME, end_of_text_id, text_config


@dataclass(frozen=True)
class ExistingTokenizer:
    """A tokenizer in a file. `vocab_size`: vocabulary of its model, which may be larger than the tokenizer's.

    `end_of_text`: id of the token that ends a text. `model`: folder of the model that it belongs to.
    """

    file: Path
    vocab_size: int
    end_of_text: int
    model: Path | None = None

    @classmethod
    def from_model(cls, folder: Path, vocab_size: int) -> "ExistingTokenizer":
        """Return the tokenizer of a model in Hugging Face's layout. Raises ValueError if it does not fit the model."""
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
        if tokenizer.get_vocab_size() > vocab_size:
            raise ValueError(
                f"{folder}: the tokenizer has {tokenizer.get_vocab_size()} entries, more than the model's {vocab_size}"
            )
        end_of_text = end_of_text_id(text_config(json.loads((folder / CONFIG_NAME).read_text())))
        if end_of_text is None:
            end_of_text = tokenizer.token_to_id(END_OF_TEXT)
        if end_of_text is None:
            raise ValueError(f"{folder / CONFIG_NAME} has no eos_token_id; add the id of the token that ends a text")
        return cls(folder / TOKENIZER_NAME, vocab_size, end_of_text, folder)

    @classmethod
    def from_file(cls, file: Path) -> "ExistingTokenizer":
        """Return the tokenizer that was trained on another part of the data."""
        tokenizer = Tokenizer.from_file(str(file))
        end_of_text = tokenizer.token_to_id(END_OF_TEXT)
        assert end_of_text is not None, "every tokenizer that is trained here has it"
        return cls(file, tokenizer.get_vocab_size(), end_of_text)


def ids_before_text(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that the tokenizer puts in front of each text, such as Llama's token that begins one."""
    text = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    begins = [place for place in range(len(whole)) if whole[place : place + len(text)] == text]
    return whole[: begins[0]] if begins else []


def train_tokenizer(documents: Iterable[str], spec: TokenizerSpec) -> Tokenizer:
    """Train a byte-level BPE with at most `spec.vocab_size` entries, fewer for little text.

    END_OF_TEXT has id 0, and the special tokens of the spec have the next ones.
    """
    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if spec.digits == "whole":
        tokenizer.pre_tokenizer = to_bytes
    else:
        most = 1 if spec.digits == "single" else 3
        by_digits = pre_tokenizers.Split(Regex(rf"\p{{N}}{{1,{most}}}"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_digits, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=[END_OF_TEXT, *spec.special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


@dataclass(frozen=True)
class Sample:
    """Every `stride`-th document of `seen`, beginning with the first; the stride is a power of two."""

    documents: list[str]
    stride: int
    seen: int

    def thinned(self) -> "Sample":
        """Return every second document of the sample."""
        return Sample(self.documents[::2], 2 * self.stride, self.seen)

    @property
    def characters(self) -> int:
        """Return the characters of all documents of the sample."""
        return sum(map(len, self.documents))


class EvenSample:
    """Documents evenly spaced over a data set of unknown size, at most `limit` characters (or one document)."""

    def __init__(self, limit: int) -> None:
        self._limit, self._stride, self._characters = limit, 1, 0
        self._documents: list[str] = []
        self._seen = 0

    def add(self, document: str) -> None:
        """Consider the next document."""
        if self._seen % self._stride == 0:
            self._documents.append(document)
            self._characters += len(document)
        self._seen += 1
        while self._characters > self._limit and len(self._documents) > 1:
            thinned = self.sample.thinned()
            self._documents, self._stride, self._characters = thinned.documents, thinned.stride, thinned.characters

    @property
    def sample(self) -> Sample:
        """Return the sample of the documents that were added."""
        return Sample(self._documents, self._stride, self._seen)


def join_samples(samples: Sequence[Sample], limit: int) -> list[str]:
    """Return the documents of samples of consecutive parts of a data set, thinned to one stride for all, and to at most
    `limit` characters if there are several."""
    joined = list(samples)
    stride = max((sample.stride for sample in joined), default=1)
    while True:
        for number in range(len(joined)):
            while joined[number].stride < stride:
                joined[number] = joined[number].thinned()
        fits = sum(sample.characters for sample in joined) <= limit
        if fits or all(len(sample.documents) <= 1 for sample in joined):
            return [document for sample in joined for document in sample.documents]
        stride *= 2
