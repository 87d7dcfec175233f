"""The name of a prepared data set: equal recipes give equal tokens, so that work done once is found again."""

import hashlib
import json
from typing import Any

from trainer.contract.data import PREFERENCE_FORMATS, MixturePart, TokenizerSpec

# Raised whenever preparation changes the tokens, or the files, that it makes from the same text.
RECIPE_VERSION = 2
PLAIN_TEXT_VERSION = 3  # of uploaded text, whose files are no longer held out in pieces
BASE_TOKENIZER_VERSION = 4  # of text with the tokenizer of a base model, which begins each document as it begins texts


def dataset_recipes(parts: list[MixturePart], tokenizer: TokenizerSpec, dataset_ids: list[str]) -> list[str]:
    """For each part the hex digest of all that decides its tokens.

    `dataset_ids`, one a part, are empty for text that the node makes itself. An uploaded data set is known by its id,
    since its name can be given to another text later. A part whose tokenizer another part trained is named after both;
    so a source alone, and as the part that trains the tokenizer, is one preparation.
    """
    trainer = tokenizer.trainer_among(parts)
    own = [_identity(part, tokenizer, ids) for part, ids in zip(parts, dataset_ids, strict=True)]
    if tokenizer.kind == "model":  # no part trains it
        return [_digest(identity) for identity in own]
    trained_by = _digest(own[trainer])
    return [
        _digest(identity if number == trainer else {**identity, "tokenizer_of": trained_by})
        for number, identity in enumerate(own)
    ]


def _identity(part: MixturePart, tokenizer: TokenizerSpec, dataset_id: str) -> dict[str, Any]:
    is_builtin = part.source.startswith("builtin:")
    version = PLAIN_TEXT_VERSION if part.format in ("auto", "text") and not is_builtin else RECIPE_VERSION
    if tokenizer.kind == "model" and part.format not in ("chat", *PREFERENCE_FORMATS):
        version = BASE_TOKENIZER_VERSION
    return {
        "version": version,
        "source": part.source if is_builtin else (dataset_id or part.source),
        "format": part.format,
        "text_field": part.text_field,
        "validation_fraction": part.validation_fraction,
        "tokenizer": tokenizer.identity,
    }


def _digest(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
