"""Prepare a data set in a folder: tokenizer, shards of both splits, and the index. Memory use is bounded.

The objects are divided into units, which can be prepared by several processes. The result depends on the units, not on
who prepares them: each has shards of its own.
"""

import hashlib
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.contract.data import END_OF_TEXT, PREFERENCE_FORMATS, MixturePart, Sequences, TokenizerSpec
from trainer.data.chat import ChatTemplate, Conversation, counted_tokens, has_template, read_conversations
from trainer.data.documents import STRICT, Document, Piece, RawObject, Reading, RowProblem, data_error, read_documents
from trainer.data.encoding import Encoded, EncodedTexts, LibraryEncoder
from trainer.data.masks import MASKED_DTYPE, masked
from trainer.data.pairs import Pair, PairProblem, pair_tokens, read_pairs
from trainer.data.shards import (
    MAX_SHARD_BYTES,
    SPLITS,
    TOKENIZER_NAME,
    DatasetIndex,
    DocumentLengths,
    Shard,
    ShardWriter,
    join_document_lengths,
    token_dtype,
)
from trainer.data.source import row_counts
from trainer.data.tokenizer import EvenSample, ExistingTokenizer, Sample, ids_before_text, join_samples, train_tokenizer
from trainer.data.unpaired import LabelledAnswer, labelled_tokens, read_labelled_answers

UNIT_BYTES = 256 * 2**20
"""Size of a unit: as many whole objects as it takes to reach it."""
_BATCH_DOCUMENTS, _BATCH_CHARACTERS = 256, 4_000_000  # per call of the tokenizer's threads

Objects = Callable[[], Iterable[RawObject]]
Observe = Callable[[str, str, NDArray[np.uint32]], None]
"""Called with (split, document, its stored tokens)."""
Text = TypeVar("Text", bound=str)
EncodeBatches = Callable[[str, bool, Iterable[list[str]]], Iterator[EncodedTexts]]
"""Called with (content of the tokenizer's file, whether the beginnings of tokens are needed, batches of texts)."""


def ignore_document(split: str, document: str, tokens: NDArray[np.uint32]) -> None:
    """Do nothing."""


def encode_by_library(tokenizer: str, has_begins: bool, batches: Iterable[list[str]]) -> Iterator[EncodedTexts]:
    """Yield the tokens of each text of each batch, encoded by the library's threads."""
    return map(LibraryEncoder(tokenizer, has_begins=has_begins), batches)


@dataclass
class DocumentCount:
    """The documents of a unit. The Pieces of a file count as one; `pieces`: how many a file has that has several, by
    its number from 1."""

    documents: int = 0
    pieces: dict[int, int] = field(default_factory=dict)

    def add(self, document: str) -> None:
        """Count the next document."""
        if not isinstance(document, Piece) or document.begins_file:
            self.documents += 1
        else:
            self.pieces[self.documents] = self.pieces.get(self.documents, 1) + 1


@dataclass(frozen=True)
class UnitCount:
    """What a unit contains: its documents, and an even sample of them for the tokenizer."""

    count: DocumentCount
    sample: Sample


@dataclass(frozen=True)
class PreparationPlan:
    """What is known once all units are counted. `tokenizer`: content of its file."""

    counts: list[DocumentCount]
    documents: int
    tokenizer: str
    vocab_size: int
    end_of_text: int


@dataclass(frozen=True)
class UnitTokens:
    """A tokenised unit. `digest`: SHA-256 of the tokenizer's file and of the tokens of both splits."""

    shards: dict[str, list[Shard]]
    text_bytes: dict[str, int]
    digest: str


class Preparation:
    """One data set: `count` all units, `plan`, `tokenise` all units, then `finish`; each raises TrainerError
    (DATA_ERROR) for invalid data. Its processes may have folders of their own."""

    def __init__(
        self,
        units: Sequence[Objects],
        part: MixturePart,
        tokenizer: TokenizerSpec | ExistingTokenizer,
        folder: Path,
        shard_bytes: int = MAX_SHARD_BYTES,
        reading: Reading = STRICT,
        *,
        has_spool: bool = False,
    ) -> None:
        """Set up for `folder`, which is created, with a tokenizer that is trained here or read from a file.

        Each unit is read twice: to count and sample, and to tokenise. `has_spool`: the documents are stored in the
        folder when they are counted, and the same process reads them there when it tokenises, which saves reading rows
        and rendering conversations again.
        """
        self._has_spool, self._reading = has_spool, reading
        self.num_units, self._readers = len(units), [_reader(unit, part, tokenizer, reading) for unit in units]
        self._part, self._tokenizer, self._folder, self._shard_bytes = part, tokenizer, folder, shard_bytes
        self._sample_size = tokenizer.sample_size if isinstance(tokenizer, TokenizerSpec) else 0
        self._has_pairs, self._has_labels = part.format == "preference", part.format == "unpaired"
        self._is_masked = part.format == "chat" or self._has_pairs or self._has_labels

    def count(self, number: int) -> UnitCount:
        """Count and sample the documents of a unit."""
        # Joined samples are thinned, by half at most; so they are twice as large as needed, if there are several.
        size = self._sample_size if self.num_units == 1 else -(-2 * self._sample_size // self.num_units)
        count, sample = DocumentCount(), EvenSample(size)
        documents = self._readers[number]()
        for document in self._spooled(number, documents) if self._has_spool else documents:
            count.add(document)
            sample.add(document)
        return UnitCount(count, sample.sample)

    def _spooled(self, number: int, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents of a unit, and store them."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._spool(number).open("wb") as file:
            for batch in _batches(("", document) for document in documents):
                stored = [document for _, document in batch]
                pickle.dump(stored, file, protocol=pickle.HIGHEST_PROTOCOL)
                yield from stored

    def _spool(self, number: int) -> Path:
        return self._folder / f"documents-{number:05d}.pickle"

    def _documents(self, number: int) -> Iterator[Document]:
        """Yield the documents of a unit that was counted."""
        if not self._has_spool:
            yield from self._readers[number]()
            return
        with self._spool(number).open("rb") as file, suppress(EOFError):
            while True:
                yield from pickle.load(file)  # noqa: S301 - written by this process
        self._spool(number).unlink()

    def plan(self, units: Sequence[UnitCount]) -> PreparationPlan:
        """Train or read the tokenizer. `units`: all of them, in order."""
        documents = sum(unit.sample.seen for unit in units)
        if not documents:
            raise data_error(f"{self._part.source} has no text: every object is empty; add files with text")
        if self._is_masked and documents == 1:
            kind = "pair" if self._has_pairs else "answer" if self._has_labels else "conversation"
            message = f"{self._part.source} has one {kind}; two or more are needed, because some are held out"
            raise data_error(message)
        counts, tokenizer = [unit.count for unit in units], self._tokenizer
        if isinstance(tokenizer, ExistingTokenizer):
            content = tokenizer.file.read_bytes().decode()
            return PreparationPlan(counts, documents, content, tokenizer.vocab_size, tokenizer.end_of_text)
        trained = train_tokenizer(join_samples([unit.sample for unit in units], self._sample_size), tokenizer)
        size, end_of_text = trained.get_vocab_size(), trained.token_to_id(END_OF_TEXT)
        assert end_of_text is not None, "every tokenizer that is trained here has it"
        return PreparationPlan(counts, documents, trained.to_str(pretty=True), size, end_of_text)

    def tokenise(
        self,
        number: int,
        plan: PreparationPlan,
        observe: Observe = ignore_document,
        encode: EncodeBatches = encode_by_library,
    ) -> UnitTokens:
        """Write the shards and document lengths of a unit. `encode` may read some batches in advance."""
        self._folder.mkdir(parents=True, exist_ok=True)
        dtype, shard_bytes = self._dtype(plan), self._shard_bytes
        writers = {split: ShardWriter(self._folder, split, number, dtype, shard_bytes) for split in SPLITS}
        text_bytes = dict.fromkeys(SPLITS, 0)
        before = ids_before_text(Tokenizer.from_str(plan.tokenizer))  # templates of chats have them
        beginning, end = np.array(before, dtype=np.uint32), np.array([plan.end_of_text], dtype=np.uint32)
        split_of = Split(self._part.validation_fraction, plan.counts)
        pending: deque[list[tuple[str, str]]] = deque()

        def texts() -> Iterator[list[str]]:
            for batch in _batches(split_of.divide(self._documents(number), number)):
                pending.append(batch)
                sides = (text.sides if isinstance(text, Pair) else (text,) for _, text in batch)
                yield [str(side) for each in sides for side in each]

        for encoded in encode(plan.tokenizer, self._is_masked, texts()):
            encodings = iter(encoded)
            for split, text in pending.popleft():
                if isinstance(text, Pair | LabelledAnswer):
                    try:
                        tokens = _answer_tokens(text, encodings, before, plan.end_of_text)
                    except PairProblem as error:
                        self._reading.on_problem(RowProblem(error.kind, text.place, str(error)))
                        continue
                elif isinstance(text, Conversation):
                    ids, begins = next(encodings)
                    tokens = masked(ids, counted_tokens(begins, text.counted))
                else:
                    tokens = np.concatenate([beginning, next(encodings).ids, end])
                writers[split].add(tokens)
                observe(split, text, tokens)
                text_bytes[split] += len(text.encode())
        shards = {split: writer.close() for split, writer in writers.items()}
        digest = hashlib.sha256(plan.tokenizer.encode())
        for name in (shard.name for split in SPLITS for shard in shards[split]):
            digest.update((self._folder / name).read_bytes())
        return UnitTokens(shards, text_bytes, digest.hexdigest())

    def finish(self, plan: PreparationPlan, units: Sequence[UnitTokens]) -> DatasetIndex:
        """Write the tokenizer, the joined document lengths and the index. `units`: all of them, in order."""
        (self._folder / TOKENIZER_NAME).write_bytes(plan.tokenizer.encode())
        shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
        for split in SPLITS:
            join_document_lengths(self._folder, split, len(units))
            for shard in (shard for unit in units for shard in unit.shards[split]):
                shards[split].append(shard.after(shards[split]))
        digests = [unit.digest for unit in units]
        index = DatasetIndex(
            fingerprint=digests[0] if len(digests) == 1 else hashlib.sha256("/".join(digests).encode()).hexdigest(),
            vocab_size=plan.vocab_size,
            documents=plan.documents,
            dtype=self._dtype(plan),
            shards=shards,
            text_bytes={split: sum(unit.text_bytes[split] for unit in units) for split in SPLITS},
            end_of_text=plan.end_of_text,
            is_masked=self._is_masked,
            has_pairs=self._has_pairs,
            has_labels=self._has_labels,
        )
        index.write(self._folder)
        return index

    def run(self) -> DatasetIndex:
        """Prepare all units in this process."""
        plan = self.plan([self.count(number) for number in range(self.num_units)])
        return self.finish(plan, [self.tokenise(number, plan) for number in range(self.num_units)])

    def _dtype(self, plan: PreparationPlan) -> str:
        return MASKED_DTYPE if self._is_masked else token_dtype(plan.vocab_size)


def divide_into_units(sizes: Sequence[int], unit_bytes: int) -> list[slice]:
    """Return the objects of each unit: consecutive ones, of at least `unit_bytes` in all but the last."""
    units, first, size = [], 0, 0
    for number, each in enumerate(sizes):
        size += each
        if size >= unit_bytes or number == len(sizes) - 1:
            units.append(slice(first, number + 1))
            first, size = number + 1, 0
    return units


def _reader(
    objects: Objects, part: MixturePart, tokenizer: TokenizerSpec | ExistingTokenizer, reading: Reading
) -> Callable[[], Iterator[Document]]:
    """Return a function that reads a part's documents, from the beginning at each call."""
    if part.format not in ("chat", *PREFERENCE_FORMATS):
        return lambda: read_documents(objects(), part, reading)
    end_of_text, model = END_OF_TEXT, None
    if isinstance(tokenizer, ExistingTokenizer):
        model = tokenizer.model
        end_of_text = Tokenizer.from_file(str(tokenizer.file)).id_to_token(tokenizer.end_of_text) or END_OF_TEXT
    template = ChatTemplate.from_model(model, end_of_text)
    if part.format in PREFERENCE_FORMATS:
        read = read_pairs if part.format == "preference" else read_labelled_answers
        # Without a model, which only a data report allows, conversations have the default template.
        own = template if model is None or has_template(model) else None
        return lambda: read(objects(), own, reading)
    return lambda: read_conversations(objects(), part, template, reading)


class Split:
    """Which documents are held out. The Pieces of a file count as one document, so that none is held out between
    neighbours that are trained on.

    Every k-th document is held out, k being 1 / `fraction`, rounded, and at least 2. Of fewer documents than k: the end
    of each file of several pieces, `fraction` of it; without such a file the last document, and the end of a single
    one.
    """

    def __init__(self, fraction: float, counts: Sequence[DocumentCount]) -> None:
        """Set up for `counts`, those of all units, in order."""
        self._fraction, self._every = fraction, max(2, round(1 / fraction))
        self._counts, self._total = counts, sum(count.documents for count in counts)
        self._has_pieces = any(count.pieces for count in counts)

    def divide(self, documents: Iterable[str], unit: int) -> Iterator[tuple[str, str]]:
        """Yield (split, text) of the documents of a unit."""
        if self._total == 1 and not self._has_pieces:
            for text in documents:
                yield from self._cut(text)
            return
        before, pieces = sum(count.documents for count in self._counts[:unit]), self._counts[unit].pieces
        number = piece = 0
        for text in documents:
            is_new = not isinstance(text, Piece) or text.begins_file
            number, piece = (number + 1, 1) if is_new else (number, piece + 1)
            is_held_out = self._is_held_out(before + number, piece, pieces.get(number, 1))
            yield "validation" if is_held_out else "train", text

    def _is_held_out(self, number: int, piece: int, pieces: int) -> bool:
        """Return it for a piece of document `number`, both counted from 1, of the whole data set."""
        if self._total >= self._every or not self._has_pieces:
            return number % min(self._total, self._every) == 0
        return pieces > 1 and piece > pieces - max(1, round(pieces * self._fraction))

    def _cut(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the parts of a single document, which is cut at a line end near 1 - fraction."""
        cut = max(1, int(len(text) * (1 - self._fraction)))
        cut = text.rfind("\n", 0, cut) + 1 or cut
        yield "train", text[:cut]
        if cut < len(text):
            yield "validation", text[cut:]


def check_enough(folder: Path, index: DatasetIndex, source: str, training: Sequences) -> None:
    """Raise TrainerError (DATA_ERROR) if a split does not fill one row."""
    for split in SPLITS:
        tokens = sum(shard.tokens for shard in index.shards[split])
        rows = sum(row_counts(folder, index, split, training.data, training.sequence_length)) if tokens else 0
        if not rows and tokens and training.data.long_documents == "drop":
            kind = "pair" if index.has_pairs else "answer" if index.has_labels else "document"
            raise data_error(
                f"no {kind} in the {split} split of {source} fits into training.sequence_length "
                f"{training.sequence_length}, and longer ones are left out: set a longer sequence_length"
            )
        if (
            rows
            and index.has_labels
            and split == "train"
            and rows == _num_fitting(folder, index, training.sequence_length)
        ):
            raise data_error(
                f"each sequence of {source} has a single answer, and training.preference.loss kto needs several for "
                f"its reference point: set a longer sequence_length than {training.sequence_length}"
            )
        if not rows:
            raise data_error(
                f"the {split} split of {source} has {tokens} tokens; training.sequence_length "
                f"{training.sequence_length} needs at least {training.sequence_length + 1}: add more text, or set "
                "a shorter sequence_length" + (" or a larger validation_fraction" if split == "validation" else "")
            )


def _answer_tokens(
    text: Pair | LabelledAnswer, encodings: Iterator[Encoded], before: Sequence[int], end_of_text: int
) -> NDArray[np.uint32]:
    """Return the marked tokens of a pair or of an answer with a label, with the next of `encodings`."""
    if isinstance(text, Pair):
        return pair_tokens(text, [next(encodings), next(encodings)], before, end_of_text)
    return labelled_tokens(text, next(encodings), before, end_of_text)


def _num_fitting(folder: Path, index: DatasetIndex, length: int) -> int:
    """Return the number of documents to train on that are no longer than a sequence."""
    return sum(int((lengths <= length).sum()) for lengths in DocumentLengths(folder, index, "train"))


def _batches(texts: Iterable[tuple[str, Text]]) -> Iterator[list[tuple[str, Text]]]:
    batch: list[tuple[str, Text]] = []
    characters = 0
    for split, text in texts:
        batch.append((split, text))
        characters += len(text)
        if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
