"""Documents to a prepared folder: tokenizer, train and validation tokens, index with fingerprint."""

import hashlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from trainer.contract.training import TrainingSpec
from trainer.data.documents import RawObject, data_error, read_documents
from trainer.data.shards import TOKENIZER_NAME, DatasetIndex, token_dtype
from trainer.data.tokenizer import END_OF_TEXT, train_tokenizer

_ENCODE_BATCH = 256  # documents given to the tokenizer's threads at once


def prepare(objects: Iterable[RawObject], training: TrainingSpec, folder: Path) -> DatasetIndex:
    """Tokenise into `folder` (made if need be). Raises TrainerError (DATA_ERROR) for bad or too little data."""
    documents = list(read_documents(objects, training.data))
    if not documents:
        raise data_error(f"{training.data.source} has no text: every object is empty; give it some")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(documents, training.tokenizer)
    tokenizer.save(str(folder / TOKENIZER_NAME))
    documents, validation = split_documents(documents, training.data.validation_fraction)
    digest = hashlib.sha256((folder / TOKENIZER_NAME).read_bytes())
    counts = {}
    dtype = token_dtype(tokenizer.get_vocab_size())
    for split, texts in (("train", documents), ("validation", validation)):
        counts[split] = _write_tokens(tokenizer, texts, folder / f"{split}.bin", dtype, digest)
    index = DatasetIndex(
        fingerprint=digest.hexdigest(),
        vocab_size=tokenizer.get_vocab_size(),
        train_tokens=counts["train"],
        validation_tokens=counts["validation"],
        documents=len(documents) + len(validation),
        dtype=dtype,
    )
    check_enough(index, training)
    index.write(folder)
    return index


def split_documents(documents: list[str], fraction: float) -> tuple[list[str], list[str]]:
    """Every k-th document is held out, so that both splits see the whole range of the data.

    A lone document is cut in two at a line end near `1 - fraction`.
    """
    if len(documents) == 1:
        text = documents[0]
        cut = max(1, int(len(text) * (1 - fraction)))
        cut = text.rfind("\n", 0, cut) + 1 or cut
        return [text[:cut]], [text[cut:]]
    every = min(len(documents), max(2, round(1 / fraction)))
    validation = documents[every - 1 :: every]
    train = [text for number, text in enumerate(documents, start=1) if number % every]
    return train, validation


def check_enough(index: DatasetIndex, training: TrainingSpec) -> None:
    """Each split must fill one sequence and the token after it."""
    needed = training.sequence_length + 1
    for split, tokens in (("train", index.train_tokens), ("validation", index.validation_tokens)):
        if tokens < needed:
            raise data_error(
                f"the {split} split of {training.data.source} has {tokens} tokens; training.sequence_length "
                f"{training.sequence_length} needs at least {needed}: give more text, a shorter sequence"
                + (" or a larger training.data.validation_fraction" if split == "validation" else "")
            )


def _write_tokens(tokenizer: Tokenizer, texts: list[str], path: Path, dtype: str, digest: "hashlib._Hash") -> int:
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    remaining, count = iter(texts), 0
    with path.open("wb") as file:
        while batch := list(islice(remaining, _ENCODE_BATCH)):
            for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                tokens = np.asarray([*encoding.ids, end_of_text], dtype=dtype).tobytes()
                file.write(tokens)
                digest.update(tokens)
                count += len(encoding.ids) + 1
    return count
