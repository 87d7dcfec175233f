"""`python -m trainer.standalone.convert DIR OUT --to gguf`: another form of a downloaded model, without a GPU."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.contract.data import MixturePart
from trainer.contract.evaluation import EvaluationTask
from trainer.contract.hugging_face import CONFIG_NAME, DESCRIBING_FILES, TOKENIZER_NAME
from trainer.contract.models import ModelShape
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.data.documents import RawObject
from trainer.data.evaluation import ItemReader, Items
from trainer.data.tokenizer import ExistingTokenizer
from trainer.errors import TrainerError
from trainer.export.distributed_checkpoint import DistributedCheckpoint, map_names
from trainer.export.folder import read_config, read_shape, user_error
from trainer.export.read import StoredWeights, load_decoder
from trainer.export.shards import ShardWriter
from trainer.export.write import exported_tensors
from trainer.models.decoder import Decoder
from trainer.training.confidence import Estimate, ratio

SAFETENSORS = "safetensors"
FORMS = ("gguf", "int8", "int4", SAFETENSORS)
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
COPIED = (*DESCRIBING_FILES[1:], "generation_config.json", "special_tokens_map.json")
"""Files that describe a model in any precision of its weights."""
PRECISIONS = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Of GGUF, with the bytes of a number."""
_ROOM = 16 * 2**20  # for the tokenizer and the configuration


class ModelWriter(Protocol):
    """Writes a form of a model, tensor by tensor."""

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Write the next parameter. Return its values as they are stored."""

    def finish(self) -> None:
        """Complete what is written."""


@dataclass(frozen=True)
class HeldOut:
    """Data to compare losses on. `length`: the longest window, in tokens."""

    files: list[Path]
    format: str
    text_field: str
    length: int

    def read(self, folder: Path, vocab_size: int) -> Items:
        """Return the documents as token ids. Raises TrainerError (DATA_ERROR)."""
        try:
            existing = ExistingTokenizer.from_model(folder, vocab_size)
        except ValueError as error:
            raise user_error(str(error)) from error
        described = {"source": "dataset:held-out", "format": self.format, "text_field": self.text_field}
        task = EvaluationTask.model_validate({"name": "held-out", "kind": "loss", **described})
        objects = (RawObject.file(path) for path in self.files)
        return ItemReader(existing, self.length).read(task, MixturePart.model_validate(described), objects)


@dataclass(frozen=True)
class LossChange:
    """Mean loss of a token before and after a conversion, and the difference, over the same documents."""

    documents: int
    tokens: int
    original: Estimate
    converted: Estimate
    difference: Estimate


def convert(folder: Path, output: Path, form: str, precision: str, held_out: HeldOut | None) -> dict[str, Any]:
    """Write `folder` in another form to `output`, and return what was written. Raises TrainerError; then there is no
    `output`."""
    config, shape = read_config(folder), read_shape(folder)
    if config["model_type"] not in FAMILIES:
        raise user_error(
            f"{folder} is of the family {config['model_type']}, which is not converted to {form}: only "
            f"{', '.join(FAMILIES)} are; keep this model as safetensors"
        )
    if not (folder / TOKENIZER_NAME).is_file():
        raise user_error(f"{folder} has no {TOKENIZER_NAME}: give the folder of an exported model")
    shapes = {name: tensor.shape for name, tensor in on_meta(shape, config).items()}
    stored = StoredWeights(folder, shape)
    items = held_out.read(folder, config["vocab_size"]) if held_out is not None else None
    parameters = sum(size.numel() for size in shapes.values())
    check_room(output, parameters * (PRECISIONS[precision] if form == "gguf" else 1.0))
    with temporary(output, is_folder=form != "gguf") as partial:
        writer = _writer(folder, config, shape, shapes, form, precision, partial)
        model = load_decoder(folder, shape, config["vocab_size"], held_out.length).float() if held_out else None
        before = _score(model, items)
        for name, size in shapes.items():
            values = writer.add(name, stored.whole(name, tuple(size)))
            if model is not None:
                model.get_parameter(name).data.copy_(values)
        writer.finish()
        after = _score(model, items)
        if form != "gguf":
            copy_files(folder, partial, COPIED)
    loss = None if before is None or after is None else asdict(_change(before, after))
    return describe_result(output, form, precision if form == "gguf" else form, parameters) | {"loss": loss}


def assemble(folder: Path, output: Path) -> dict[str, Any]:
    """Write the weights of a checkpoint of torch.distributed.checkpoint in Hugging Face's layout to the folder
    `output`, in their precision, and return what was written. Raises TrainerError; then there is no `output`."""
    config, shape = read_config(folder), read_shape(folder)
    meta = exported_tensors(on_meta(shape, config).items(), shape)
    expected = {theirs: tensor.shape for _, theirs, tensor in meta}
    checkpoint = DistributedCheckpoint(folder)
    sources, ignored = map_names(checkpoint, shape, expected)
    check_room(output, sum(each.size.numel() * each.dtype.itemsize for each in sources.values()))
    types = set()
    with temporary(output, is_folder=True) as partial:
        shards = ShardWriter(partial)
        for name in expected:
            tensor = sources[name].read()
            types.add(str(tensor.dtype).removeprefix("torch."))
            shards.add(name, tensor)
        shards.finish()
        copy_files(folder, partial, (CONFIG_NAME, *COPIED))
    parameters = sum(size.numel() for size in expected.values())
    result = describe_result(output, SAFETENSORS, ", ".join(sorted(types)), parameters)
    return result | {"loss": None, "ignored": sorted(ignored)}


def on_meta(shape: ModelShape, config: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a model by our names, without memory."""
    with torch.device("meta"):
        state: dict[str, Tensor] = Decoder(shape, config["vocab_size"], 1).state_dict()
    return state


def describe_result(output: Path, form: str, precision: str, parameters: int) -> dict[str, Any]:
    """Return what was written to `output`."""
    files = sorted(output.iterdir()) if output.is_dir() else [output]
    size_bytes = sum(file.stat().st_size for file in files)
    described = {"output": str(output), "form": form, "precision": precision}
    return {**described, "parameters": parameters, "size_bytes": size_bytes}


def copy_files(folder: Path, output: Path, names: Iterable[str]) -> None:
    """Copy those of these files that `folder` has."""
    for name in names:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, output / name)


def _writer(
    folder: Path, config: dict[str, Any], shape: ModelShape, shapes: dict[str, torch.Size], form: str, precision: str,
    path: Path,
) -> ModelWriter:  # fmt: skip
    """Return the writer of a form. Raises TrainerError, also where its package is not installed."""
    try:
        if form == "gguf":
            from trainer.export.gguf_file import GgufFile  # noqa: PLC0415 - an extra

            return GgufFile(folder, config, shape, shapes, precision, path)
        from trainer.export.quantized import QuantizedFolder  # noqa: PLC0415 - an extra

        return QuantizedFolder(folder, config, shape, shapes, form, path)
    except ModuleNotFoundError as error:
        raise user_error(
            f"{form} needs the package {error.name}, which is not installed: pip install 'athanor[trainer,convert]'"
        ) from error


@contextmanager
def temporary(output: Path, *, is_folder: bool) -> Iterator[Path]:
    """Give a path beside `output` to write to, which gets the name `output` at the end and is removed after an error.

    Raises TrainerError (USER_ERROR) if there is `output`.
    """
    if output.exists() or output.is_symlink():
        raise user_error(f"{output} exists: choose another name, or remove it first")
    partial = output.with_name(output.name + ".converting")
    _remove(partial)
    try:
        if is_folder:
            partial.mkdir(parents=True)
        else:
            partial.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.rename(output)
    except OSError as error:
        _remove(partial)
        raise user_error(f"{output} cannot be written: {error}; free space, or choose another folder") from error
    except BaseException:
        _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_room(output: Path, num_bytes: float) -> None:
    """Raise TrainerError (USER_ERROR) if the disk has clearly too little space for weights of this size."""
    needed = num_bytes + _ROOM
    parent = next(each for each in output.absolute().parents if each.exists())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise user_error(
            f"{output} needs about {needed / 2**30:.1f} GiB, but {parent} has {free / 2**30:.1f} GiB of free space; "
            "free some, or choose another disk"
        )


def _score(model: Decoder | None, items: Items | None) -> NDArray[np.float64] | None:
    """Return [summed loss, number of targets] of each document, [N, 2]; None without data."""
    if model is None or items is None:
        return None
    found_N2 = np.zeros((len(items.num_bytes), 2))
    with torch.inference_mode():
        for window in items.windows:
            targets_1S = torch.from_numpy(window.targets_S)[None]
            loss = model(torch.from_numpy(window.tokens_S)[None], targets_1S).item()
            found_N2[window.item] += (loss, int((targets_1S >= 0).sum()))
    if not np.isfinite(found_N2).all():
        raise user_error("the loss of the model is not finite: its weights are damaged or have diverged")
    return found_N2


def _change(before_N2: NDArray[np.float64], after_N2: NDArray[np.float64]) -> LossChange:
    tokens_N = before_N2[:, 1]
    losses = (before_N2[:, 0], after_N2[:, 0], after_N2[:, 0] - before_N2[:, 0])
    return LossChange(len(tokens_N), int(tokens_N.sum()), *(ratio(each_N, tokens_N) for each_N in losses))


def main() -> int:
    """Convert a model, and print what was written as JSON. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.standalone.convert", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of an exported model")
    parser.add_argument("output", type=Path, help="a new file (gguf) or a new folder")
    parser.add_argument("--to", choices=FORMS, required=True, help="form to write")
    parser.add_argument("--precision", choices=PRECISIONS, default="f16", help="of the matrices of gguf")
    parser.add_argument("--data", type=Path, action="append", help="file to report the difference of the loss on")
    parser.add_argument("--format", default="auto", help="format of the data, as in training.data")
    parser.add_argument("--text-field", default="text", help="field of the text")
    parser.add_argument("--sequence-length", type=int, default=1024, help="longest window of the data, in tokens")
    arguments = parser.parse_args()
    return reporting(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    folder: Path = arguments.folder
    if arguments.to == SAFETENSORS:
        if arguments.data:
            raise user_error("--data compares two precisions, but --to safetensors changes no weight: leave it out")
        return assemble(folder, arguments.output)
    held_out = None
    if arguments.data:
        length = min(arguments.sequence_length, read_config(folder)["max_position_embeddings"])
        held_out = HeldOut(arguments.data, arguments.format, arguments.text_field, length)
    return convert(folder, arguments.output, arguments.to, arguments.precision, held_out)


def reporting(work: Callable[[], dict[str, Any]]) -> int:
    """Print the result of `work` as JSON, or the message of a TrainerError. Return the exit code."""
    try:
        result = work()
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STATUS[error.end_class]
    sys.stdout.write(json.dumps(result) + "\n")
    return EXIT_STATUS[EndClass.COMPLETED]


if __name__ == "__main__":
    sys.exit(main())
