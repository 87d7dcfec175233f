"""`python -m trainer.standalone.merge DIR DIR --output OUT`: merge the weights of downloaded models, without a GPU."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.contract.hugging_face import CONFIG_NAME, TOKENIZER_NAME, is_of_images_too
from trainer.contract.models import ModelShape
from trainer.errors import TrainerError
from trainer.export.folder import read_config, read_shape, user_error
from trainer.export.merging import linear, slerp, ties
from trainer.export.read import StoredWeights
from trainer.export.shards import ShardWriter
from trainer.export.write import exported_tensors
from trainer.standalone.convert import (
    COPIED,
    SAFETENSORS,
    check_room,
    copy_files,
    describe_result,
    on_meta,
    reporting,
    temporary,
)

METHODS = ("linear", "slerp", "ties")
_STATE_OF_TEXTS = ("padding", "truncation")  # how the last text was encoded


@dataclass(frozen=True)
class Merging:
    """How weights are merged. `weights`: one for each model. `base`: the folder of the model that all were trained
    from, with `ties`."""

    method: str
    weights: Sequence[float]
    base: Path | None = None
    density: float = 0.2
    scale: float = 1.0

    def check(self, num_models: int) -> None:
        """Raise TrainerError (USER_ERROR) for settings that do not go together."""
        if num_models < 2 or (self.method == "slerp" and num_models > 2):
            needed = "exactly two" if self.method == "slerp" else "at least two"
            more = "; use linear for more" if num_models > 2 else ""
            raise user_error(f"{self.method} merges {needed} models, and {num_models} are given{more}")
        if len(self.weights) != num_models:
            raise user_error(
                f"{len(self.weights)} weights are given for {num_models} models; give one for each, or none"
            )
        for weight in self.weights:
            if not (math.isfinite(weight) and weight > 0):
                raise user_error(f"the weight {weight:g} is not above 0; leave a model out to give it no weight")
        if self.method == "ties" and self.base is None:
            raise user_error("ties needs --base, the folder of the model that all others were trained from")
        if self.method != "ties" and self.base is not None:
            raise user_error(f"--base belongs to ties, and the method is {self.method}; leave it out")
        if not 0 < self.density <= 1:
            raise user_error(f"the density {self.density:g} is not above 0 and at most 1")

    def merge(self, tensors: Sequence[Tensor], base: Tensor | None) -> Tensor:
        """Return the merged tensor in the precision of the first one."""
        if self.method == "ties":
            assert base is not None
            merged = ties(base, tensors, self.weights, self.density, self.scale)
        else:
            one, *others = tensors
            merged = slerp(one, others[0], self.weights) if self.method == "slerp" else linear(tensors, self.weights)
        return merged.to(tensors[0].dtype)


def merge(folders: Sequence[Path], output: Path, merging: Merging) -> dict[str, Any]:
    """Write the merged model to the folder `output`, with the configuration and tokenizer of the first one, and return
    what was written. Raises TrainerError; then there is no `output`."""
    merging.check(len(folders))
    first = folders[0]
    sources = [*folders, *([] if merging.base is None else [merging.base])]
    shape = _common_shape(sources)
    meta = on_meta(shape, read_config(first))
    stored = [StoredWeights(folder, shape) for folder in sources]
    check_room(output, sum(tensor.numel() * 4.0 for tensor in meta.values()))
    types = set()
    with temporary(output, is_folder=True) as partial_folder:
        shards = ShardWriter(partial_folder)
        merged_tensors = ((name, _merged(stored, name, tensor, merging)) for name, tensor in meta.items())
        for _, theirs, tensor in exported_tensors(merged_tensors, shape):
            types.add(str(tensor.dtype).removeprefix("torch."))
            shards.add(theirs, tensor)
        shards.finish()
        copy_files(first, partial_folder, (CONFIG_NAME, *COPIED))
    parameters = sum(tensor.numel() for tensor in meta.values())
    return describe_result(output, SAFETENSORS, ", ".join(sorted(types)), parameters) | {"method": merging.method}


def _merged(stored: Sequence[StoredWeights], name: str, like: Tensor, merging: Merging) -> Tensor:
    tensors = [each.whole(name, tuple(like.shape)) for each in stored]
    base = None if merging.base is None else tensors.pop()
    merged = merging.merge(tensors, base)
    if not merged.isfinite().all():
        raise user_error(f"the merged tensor {name} has values that are not finite: a model is damaged or has diverged")
    return merged


def _common_shape(folders: Sequence[Path]) -> ModelShape:
    """Return the shape of all models. Raises TrainerError (USER_ERROR) that names the first two that cannot be merged,
    and what differs."""
    first, *others = folders
    for folder in folders:
        content = json.loads((folder / CONFIG_NAME).read_text()) if (folder / CONFIG_NAME).is_file() else {}
        for refused, is_there in {
            "a model for images and text, of which only the text part could be merged": is_of_images_too(content),
            "quantized; merge the models that it was made from": "quantization_config" in content,
        }.items():
            if is_there:
                raise user_error(f"{folder} is {refused}")
    config, shape = read_config(first), read_shape(first)
    tokenizer = _read_tokenizer(first)
    for other in others:
        other_config = read_config(other)
        for name in ("model_type", "vocab_size"):
            if other_config[name] != config[name]:
                raise _differ(first, other, f"{name} {config[name]} and {other_config[name]}")
        other_shape = read_shape(other).model_dump()
        for name, value in shape.model_dump().items():
            if other_shape[name] != value:
                raise _differ(first, other, f"{name} {value} and {other_shape[name]}")
        if _read_tokenizer(other) != tokenizer:
            raise _differ(first, other, f"different tokenizers ({TOKENIZER_NAME}): the same token ids are other texts")
    return shape


def _differ(first: Path, other: Path, what: str) -> TrainerError:
    return user_error(f"{first} and {other} have {what}; merge models that were trained from the same base")


def _read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return what decides the token ids of a text. Raises TrainerError (USER_ERROR) without a tokenizer."""
    try:
        content: dict[str, Any] = json.loads((folder / TOKENIZER_NAME).read_text())
    except (OSError, ValueError) as error:
        raise user_error(
            f"{folder} has no readable {TOKENIZER_NAME}: give the folder of an exported model ({error})"
        ) from error
    return {name: value for name, value in content.items() if name not in _STATE_OF_TEXTS}


def main() -> int:
    """Merge models, and print what was written as JSON. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.standalone.merge", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of exported models")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--method", choices=METHODS, default="linear", help="how weights are merged")
    parser.add_argument("--weight", type=float, action="append", help="of each model in turn; by default all equal")
    parser.add_argument("--base", type=Path, help="folder of the model that all were trained from, with ties")
    parser.add_argument("--density", type=float, default=0.2, help="share of the differences that ties retains")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the merged differences of ties")
    given = parser.parse_args()
    weights = given.weight or [1.0] * len(given.folders)
    merging = Merging(given.method, weights, given.base, given.density, given.scale)
    return reporting(partial(merge, given.folders, given.output, merging))


if __name__ == "__main__":
    sys.exit(main())
