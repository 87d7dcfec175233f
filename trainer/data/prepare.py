"""Prepare a data set in a folder: tokenizer, shards of both splits, and the index. Memory use is bounded."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from trainer.contract.data import END_OF_TEXT, MixturePart, TokenizerSpec
from trainer.contract.training import TrainingSpec
from trainer.data.chat import ChatTemplate, Conversation, counted_tokens, read_conversations
from trainer.data.documents import Piece, RawObject, data_error, read_documents
from trainer.data.masks import MASKED_DTYPE, masked
from trainer.data.shards import MAX_SHARD_BYTES, SPLITS, TOKENIZER_NAME, DatasetIndex, ShardWriter, token_dtype
from trainer.data.source import row_counts
from trainer.data.tokenizer import EvenSample, ExistingTokenizer, ids_before_text, train_tokenizer

_BATCH_DOCUMENTS, _BATCH_CHARACTERS = 256, 4_000_000  # per call of the tokenizer's threads


def prepare(
    objects: Callable[[], Iterable[RawObject]],
    part: MixturePart,
    tokenizer: TokenizerSpec | ExistingTokenizer,
    folder: Path,
    shard_bytes: int = MAX_SHARD_BYTES,
) -> DatasetIndex:
    """Tokenise the objects into `folder`, which is created, with a tokenizer that is trained here or read from a file.

    Reads the objects twice: to count and sample, and to tokenise. Raises TrainerError (DATA_ERROR) for invalid data.
    """
    read = _reader(objects, part, tokenizer)
    sample_size = tokenizer.sample_size if isinstance(tokenizer, TokenizerSpec) else 0
    sample, split_of = EvenSample(sample_size), Split(part.validation_fraction)
    for document in read():
        sample.add(document)
        split_of.add(document)
    if not sample.seen:
        raise data_error(f"{part.source} has no text: every object is empty; add files with text")
    is_masked = part.format == "chat"
    if is_masked and sample.seen == 1:
        raise data_error(f"{part.source} has one conversation; two or more are needed, because some are held out")
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(tokenizer, TokenizerSpec):
        train_tokenizer(sample.documents, tokenizer).save(str(folder / TOKENIZER_NAME))
        tokenizer = ExistingTokenizer.from_file(folder / TOKENIZER_NAME)
    else:
        shutil.copy(tokenizer.file, folder / TOKENIZER_NAME)
    made = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
    dtype = MASKED_DTYPE if is_masked else token_dtype(tokenizer.vocab_size)
    writers = {split: ShardWriter(folder, split, dtype, shard_bytes) for split in SPLITS}
    text_bytes = dict.fromkeys(SPLITS, 0)
    before = ids_before_text(made)  # templates of chats have them
    for batch in _batches(split_of.divide(read())):
        # Only the slower call returns the character offsets of tokens.
        encode = made.encode_batch if is_masked else made.encode_batch_fast
        encodings = encode([str(text) for _, text in batch], add_special_tokens=False)
        for (split, text), encoding in zip(batch, encodings, strict=True):
            if isinstance(text, Conversation):
                writers[split].add(masked(encoding.ids, counted_tokens(encoding.offsets, text.counted)))
            else:
                writers[split].add([*before, *encoding.ids, tokenizer.end_of_text])
            text_bytes[split] += len(text.encode())
    shards = {split: writer.close() for split, writer in writers.items()}
    digest = hashlib.sha256((folder / TOKENIZER_NAME).read_bytes())
    for name in (shard.name for split in SPLITS for shard in shards[split]):
        digest.update((folder / name).read_bytes())
    end, words = tokenizer.end_of_text, tokenizer.vocab_size
    index = DatasetIndex(digest.hexdigest(), words, sample.seen, dtype, shards, text_bytes, end, is_masked)
    index.write(folder)
    return index


def _reader(
    objects: Callable[[], Iterable[RawObject]], part: MixturePart, tokenizer: TokenizerSpec | ExistingTokenizer
) -> Callable[[], Iterator[str]]:
    """Return a function that reads a part's documents, from the beginning at each call."""
    if part.format != "chat":
        return lambda: read_documents(objects(), part)
    end_of_text, model = END_OF_TEXT, None
    if isinstance(tokenizer, ExistingTokenizer):
        model = tokenizer.model
        end_of_text = Tokenizer.from_file(str(tokenizer.file)).id_to_token(tokenizer.end_of_text) or END_OF_TEXT
    template = ChatTemplate.from_model(model, end_of_text)
    return lambda: read_conversations(objects(), part, template)


class Split:
    """Which documents are held out. The Pieces of a file count as one document, so that none is held out between
    neighbours that are trained on.

    Every k-th document is held out, k being 1 / `fraction`, rounded, and at least 2. Of fewer documents than k: the end
    of each file of several pieces, `fraction` of it; without such a file the last document, and the end of a single
    one.
    """

    def __init__(self, fraction: float) -> None:
        self._fraction, self._every = fraction, max(2, round(1 / fraction))
        self._count = 0
        self._pieces: dict[int, int] = {}  # of each file that has several, by its number from 1

    def add(self, document: str) -> None:
        """Count the next document, before the first is divided."""
        if not isinstance(document, Piece) or document.begins_file:
            self._count += 1
        else:
            self._pieces[self._count] = self._pieces.get(self._count, 1) + 1

    def divide(self, documents: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield (split, text) of the documents that were counted."""
        if self._count == 1 and not self._pieces:
            for text in documents:
                yield from self._cut(text)
            return
        number = piece = 0
        for text in documents:
            is_new = not isinstance(text, Piece) or text.begins_file
            number, piece = (number + 1, 1) if is_new else (number, piece + 1)
            yield "validation" if self._is_held_out(number, piece) else "train", text

    def _is_held_out(self, number: int, piece: int) -> bool:
        if self._count >= self._every or not self._pieces:
            return number % min(self._count, self._every) == 0
        pieces = self._pieces.get(number, 1)
        return pieces > 1 and piece > pieces - max(1, round(pieces * self._fraction))

    def _cut(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the parts of a single document, which is cut at a line end near 1 - fraction."""
        cut = max(1, int(len(text) * (1 - self._fraction)))
        cut = text.rfind("\n", 0, cut) + 1 or cut
        yield "train", text[:cut]
        if cut < len(text):
            yield "validation", text[cut:]


def check_enough(folder: Path, index: DatasetIndex, source: str, training: TrainingSpec) -> None:
    """Raise TrainerError (DATA_ERROR) if a split does not fill one row."""
    for split in SPLITS:
        tokens = sum(shard.tokens for shard in index.shards[split])
        rows = sum(row_counts(folder, index, split, training.data, training.sequence_length)) if tokens else 0
        if not rows:
            raise data_error(
                f"the {split} split of {source} has {tokens} tokens; training.sequence_length "
                f"{training.sequence_length} needs at least {training.sequence_length + 1}: add more text, or set "
                "a shorter sequence_length" + (" or a larger validation_fraction" if split == "validation" else "")
            )


def _batches(texts: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    characters = 0
    for split, text in texts:
        batch.append((split, text))
        characters += len(text)
        if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
