"""Read configuration and shape of a model in Hugging Face's layout, without torch."""

import json
from pathlib import Path
from typing import Any

from trainer.contract.hugging_face import (
    CONFIG_NAME,
    DESCRIBING_FILES,
    TOKENIZER_NAME,
    is_of_images_too,
    shape_of_config,
    text_config,
    tokenizer_digest,
)
from trainer.contract.models import ModelShape
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.errors import TrainerError


def read_config(folder: Path) -> dict[str, Any]:
    """Return the model's configuration, of a model for images and text that of its text part. Raises TrainerError
    (USER_ERROR) if there is none."""
    return text_config(_read_json(folder, CONFIG_NAME))


def read_shape(folder: Path) -> ModelShape:
    """Return the model's shape. Raises TrainerError: USER_ERROR without a configuration, BAD_SPEC for one that this
    decoder does not compute."""
    try:
        return shape_of_config(read_config(folder))
    except ValueError as error:
        raise TrainerError(EndClass.BAD_SPEC, f"{folder}: {error}") from error


def with_base(training: TrainingSpec, folder: Path) -> TrainingSpec:
    """Return `training` with shape and tokenizer of `model.base`, whose files are in `folder`. Raises TrainerError."""
    config, shape = read_config(folder), read_shape(folder)
    if not (folder / TOKENIZER_NAME).is_file():
        raise user_error(f"{folder} has no {TOKENIZER_NAME}: give the folder of an exported model")
    contents = {name: (folder / name).read_bytes() for name in DESCRIBING_FILES if (folder / name).is_file()}
    try:
        if is_of_images_too(_read_json(folder, CONFIG_NAME)):
            training.check_text_part()
        return training.with_base(str(folder), shape, config["vocab_size"], tokenizer_digest(config, contents))
    except ValueError as error:
        raise TrainerError(EndClass.BAD_SPEC, f"training.model.base {folder}: {error}") from error


def user_error(message: str) -> TrainerError:
    """Return the error of a model folder that cannot be used."""
    return TrainerError(EndClass.USER_ERROR, message)


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_text())
    except FileNotFoundError as error:
        raise user_error(f"{folder} has no {name}: give the folder of an exported model") from error
    except (OSError, ValueError) as error:
        raise user_error(f"{folder / name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise user_error(f"{folder / name} is not a JSON object: give the folder of an exported model")
    return content
