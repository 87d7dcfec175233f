"""Documents as the model sees them: tokens and which of them are learned, with secrets hidden."""

import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.contract.data_report import PreviewDocument, PreviewToken
from trainer.data.documents import Document, Place
from trainer.data.masks import num_chosen, unmasked
from trainer.data.pairs import Pair
from trainer.data_report.secrets import find_secrets

MAX_DOCUMENTS, MAX_TOKENS, MAX_CHARACTERS = 3, 400, 1_000_000
_NOT_LEARNED = -1
_UNBROKEN = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
"""Hidden in the preview even if no pattern knows it: part of a key may be in another document."""

Tokens = NDArray[np.uint32]


class Preview:
    """The first document and others at equal distances, of a stream of unknown length."""

    def __init__(self) -> None:
        self._stride, self._seen = 1, 0
        self._chosen: list[tuple[Document, Tokens]] = []

    def add(self, document: Document, tokens: Tokens) -> None:
        """Consider the next document. `tokens`: as stored, with the mask if `is_masked`."""
        if self._seen % self._stride == 0 and len(document) <= MAX_CHARACTERS:
            self._chosen.append((document, tokens))
        self._seen += 1
        if len(self._chosen) == 2 * MAX_DOCUMENTS:
            self._chosen, self._stride = self._chosen[::2], 2 * self._stride

    def result(self, tokenizer: Tokenizer, *, is_masked: bool) -> list[PreviewDocument]:
        """Return the documents, in order."""
        found = []
        for document, tokens in self._chosen[:MAX_DOCUMENTS]:
            if isinstance(document, Pair):
                after, parts = int(document.is_plain), np.split(tokens, [num_chosen(tokens)])
                shown = [
                    _document(document.place, side, part, tokenizer, is_masked=True, after=after)
                    for side, part in zip(document.sides, parts, strict=True)
                ]
                answers: list[Literal["chosen", "rejected"]] = ["chosen", "rejected"]
                found += [
                    part.model_copy(update={"answer": answer}) for part, answer in zip(shown, answers, strict=True)
                ]
            else:
                after = 0 if is_masked else 1
                found.append(_document(document.place, document, tokens, tokenizer, is_masked=is_masked, after=after))
        return found


def _document(
    place: Place, text: str, tokens: Tokens, tokenizer: Tokenizer, *, is_masked: bool, after: int
) -> PreviewDocument:
    """Return a document. `after`: how many tokens of the model follow the text."""
    text = str(text)
    ids, targets = unmasked(tokens, _NOT_LEARNED) if is_masked else (tokens, tokens)
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    # The model's own tokens are before the text (its beginning) and after it (its end).
    before = len(ids) - len(offsets) - after
    is_hidden = np.zeros(len(text) + 1, dtype=bool)
    for start, stop in [*_secret_spans(text), *(match.span() for match in _UNBROKEN.finditer(text))]:
        is_hidden[start:stop] = True
    shown = []
    for number, token in enumerate(ids[:MAX_TOKENS].tolist()):
        start, stop = offsets[number - before] if 0 <= number - before < len(offsets) else (0, 0)
        hidden = bool(is_hidden[start:stop].any())
        decoded = "" if hidden else tokenizer.decode([token], skip_special_tokens=False)
        # The first token of a conversation is no target: nothing comes before it.
        learned = bool(targets[number] != _NOT_LEARNED) and not (is_masked and number == 0)
        shown.append(PreviewToken(text=decoded, learned=learned, hidden=hidden))
    return PreviewDocument(object=place.object, row=place.row, tokens=shown, omitted=max(0, len(ids) - MAX_TOKENS))


def _secret_spans(text: str) -> list[tuple[int, int]]:
    return [(start, stop) for _, start, stop, _ in find_secrets(text)]
