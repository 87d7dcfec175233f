"""Text that documents share with evaluation data: runs of 13 words, as in Brown et al. (2020), appendix C."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from trainer.contract.data import MixturePart
from trainer.contract.data_report import Overlap
from trainer.data.documents import RawObject, data_error, json_lines, read_documents
from trainer.data_report.ngrams import Hashes, Words, ngram_hashes, word_hashes

NGRAM_WORDS = 13


class EvaluationText:
    """The runs of words of evaluation data, 8 bytes each in memory. Of JSON lines, all texts of a row are joined."""

    def __init__(self, objects: Iterable[RawObject]) -> None:
        """Read the objects. Raises TrainerError (DATA_ERROR) for one that cannot be read."""
        found = []
        self._rows = self._too_short = 0
        for text in (text for raw in objects for text in _rows_of(raw)):
            words = word_hashes(np.frombuffer(text.encode(errors="replace"), dtype=np.uint8))
            self._rows += 1
            self._too_short += len(words) < NGRAM_WORDS
            found.append(ngram_hashes(words, NGRAM_WORDS))
        self._ngrams: Hashes = np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)

    @property
    def summary(self) -> Overlap:
        """Return what was compared."""
        return Overlap(ngram=NGRAM_WORDS, rows=self._rows, too_short=self._too_short)

    def shared(self, words: Words) -> Iterator[tuple[int, int, int]]:
        """Yield (document, its runs that the evaluation data has too, its runs) of each document that has some."""
        ngrams, documents = words.runs(NGRAM_WORDS)
        if not len(ngrams) or not len(self._ngrams):
            return
        places = np.minimum(np.searchsorted(self._ngrams, ngrams), len(self._ngrams) - 1)
        shared = np.bincount(documents[self._ngrams[places] == ngrams], minlength=len(words.counts))
        total = np.bincount(documents, minlength=len(words.counts))
        for document in np.flatnonzero(shared).tolist():
            yield document, int(shared[document]), int(total[document])


def _rows_of(raw: RawObject) -> Iterator[str]:
    if raw.name.endswith((".parquet", ".pq")):
        raise data_error(f"{raw.name}: evaluation data is read from JSON lines and text; convert it to JSON lines")
    if raw.name.endswith((".jsonl", ".ndjson", ".json")):
        for _, record in json_lines(raw):
            yield " ".join(_texts(record))
    else:
        yield from read_documents([raw], MixturePart(source="dataset:evaluation", format="text"))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
