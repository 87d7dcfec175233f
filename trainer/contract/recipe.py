"""The name of a prepared data set: equal recipes give equal tokens, so that work done once is found again."""

import hashlib
import json

from trainer.contract.data import DataSpec, TokenizerSpec

RECIPE_VERSION = 1  # raised whenever preparation changes the tokens it makes from the same text


def dataset_recipe(data: DataSpec, tokenizer: TokenizerSpec, dataset_id: str) -> str:
    """Hex digest of all that decides the tokens. `dataset_id` is empty for text that the node makes itself.

    An uploaded data set is known by its id, since its name can be given to another text later.
    """
    identity = {
        "version": RECIPE_VERSION,
        "source": data.source if data.source.startswith("builtin:") else (dataset_id or data.source),
        "format": data.format,
        "text_field": data.text_field,
        "validation_fraction": data.validation_fraction,
        "tokenizer": tokenizer.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
