"""Read models in Hugging Face's layout: complete ones, or only the slices of tensors that a rank needs."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from trainer.contract.hugging_face import CONFIG_NAME, QUANTIZATION_BLOCK, TOKENIZER_NAME
from trainer.contract.manifest import is_file_name
from trainer.contract.models import ModelShape
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.export.folder import read_config, read_shape, user_error
from trainer.export.mxfp4 import GROUP, dequantize
from trainer.export.names import StackedRows, fused_rows, hugging_face_names, is_expert_stack, stacked_rows
from trainer.export.write import INDEX_NAME
from trainer.models.decoder import Decoder
from trainer.parallel.layout import ParamLayout


class StoredWeights:
    """The tensors of a folder by our names. `part` reads only the bytes of the part, but for the last dimensions."""

    def __init__(self, folder: Path, shape: ModelShape) -> None:
        """Index the folder's tensors. Raises TrainerError (USER_ERROR) if weights are missing."""
        self._folder, self._shape = folder, shape
        self._files: dict[str, Any] = {}
        index = folder / INDEX_NAME
        self._where: dict[str, str]
        if index.is_file():
            self._where = _weight_map(index)
        else:
            paths = sorted(path.name for path in folder.glob("*.safetensors"))
            self._where = {name: path for path in paths for name in self._open(path).keys()}  # noqa: SIM118
        # Models for images and text have their text part under a prefix, which differs between versions.
        self._stored_name = {name: name for name in self._where} | {
            _name_in_text_part(name): name for name in self._where if name != _name_in_text_part(name)
        }
        if not self._where:
            raise user_error(f"{folder} has no *.safetensors: give the folder of an exported model")

    def part(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], full_shape: tuple[int, ...]) -> Tensor:
        """Return the box at `offsets` of tensor `name`, in its stored precision, or in fp32 if that is fp8;
        `full_shape` is the shape it must have.

        Raises TrainerError: USER_ERROR where the tensor is missing, BAD_SPEC where it has another shape.
        """
        theirs = hugging_face_names(name, self._shape)
        if not theirs:
            return torch.zeros(sizes)
        stacked = stacked_rows(name, self._shape)
        if stacked is not None:
            return self._stacked(theirs[0], stacked, offsets, sizes, full_shape)
        if not is_expert_stack(name):
            first, rows = fused_rows(name, self._shape) or (0, full_shape[0])
            return self._box(theirs[0], (first + offsets[0], *offsets[1:]), sizes, (rows, *full_shape[1:]))
        chosen = theirs[offsets[0] : offsets[0] + sizes[0]]
        return torch.stack([self._box(each, offsets[1:], sizes[1:], full_shape[1:]) for each in chosen])

    def part_of(self, place: ParamLayout) -> Tensor:
        """Return a rank's shard of a tensor."""
        return self.part(place.name, place.offsets, place.local_shape, place.shape)

    def whole(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a complete tensor."""
        return self.part(name, (0,) * len(shape), shape, shape)

    def _stacked(
        self, name: str, stacked: StackedRows, offsets: tuple[int, ...], sizes: tuple[int, ...],
        full_shape: tuple[int, ...],
    ) -> Tensor:  # fmt: skip
        """Return a box of a stack of experts, of what `stacked_rows` describes."""
        parts = stacked.parts
        low, size, full = ((each[0], parts * each[1], *each[2:]) for each in (offsets, sizes, full_shape))
        if not stacked.in_turns:
            low, size = (offsets[0], stacked.place * full_shape[1] + offsets[1], *offsets[2:]), sizes
        if len(full) == 2:
            box = self._box(name, low, size, full)
        elif f"{name}_blocks" in self._stored_name:
            box = self._from_mxfp4(name, low, size, full)
        else:
            box = self._box(name, (low[0], low[2], low[1]), (size[0], size[2], size[1]), (full[0], full[2], full[1])).mT
        return (box[:, stacked.place :: parts] if stacked.in_turns else box).contiguous()

    def _from_mxfp4(
        self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], full_shape: tuple[int, ...]
    ) -> Tensor:
        """Return a box in bf16 of a stack that is stored in MXFP4, where matrices are not transposed."""
        first, last = offsets[2] // GROUP, -(-(offsets[2] + sizes[2]) // GROUP)
        low, size = (*offsets[:2], first), (*sizes[:2], last - first)
        full = (*full_shape[:2], full_shape[2] // GROUP)
        blocks = self._box(f"{name}_blocks", (*low, 0), (*size, GROUP // 2), (*full, GROUP // 2))
        scales = self._box(f"{name}_scales", low, size, full)
        return dequantize(blocks, scales).narrow(2, offsets[2] - first * GROUP, sizes[2])

    def _box(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], full_shape: tuple[int, ...]) -> Tensor:
        if name not in self._stored_name:
            raise user_error(f"{self._folder} has no tensor {name}, which its {CONFIG_NAME} requires")
        stored_name = self._stored_name[name]
        stored = self._open(self._where[stored_name]).get_slice(stored_name)
        if tuple(stored.get_shape()) != tuple(full_shape):
            raise TrainerError(
                EndClass.BAD_SPEC,
                f"{name} in {self._folder} has the shape {stored.get_shape()}, but its {CONFIG_NAME} requires "
                f"{list(full_shape)}",
            )
        box: Tensor = stored[tuple(slice(low, low + size) for low, size in zip(offsets, sizes, strict=True))]
        return self._from_fp8(name, box, offsets, full_shape) if box.dtype == torch.float8_e4m3fn else box

    def _from_fp8(self, name: str, box: Tensor, offsets: tuple[int, ...], full_shape: tuple[int, ...]) -> Tensor:
        """Return a box in fp32 of a matrix that is stored in fp8, with a scale for each block."""
        block = QUANTIZATION_BLOCK
        first = tuple(low // block for low in offsets)
        counts = tuple(-(-(low + size) // block) - low // block for low, size in zip(offsets, box.shape, strict=True))
        scales = self._box(f"{name}_scale_inv", first, counts, tuple(-(-size // block) for size in full_shape)).float()
        for dimension, (low, size) in enumerate(zip(offsets, box.shape, strict=True)):
            scales = scales.repeat_interleave(block, dimension).narrow(dimension, low % block, size)
        return box.float() * scales

    def _open(self, file: str) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(_resolve_inside(self._folder, file), framework="pt")
            except (OSError, SafetensorError) as error:
                raise user_error(f"{self._folder / file} cannot be read: {error}") from error
        return self._files[file]


def _name_in_text_part(name: str) -> str:
    """Return the name without the prefix of the text part, `language_model.` or `model.language_model.`."""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")


def _weight_map(index: Path) -> dict[str, str]:
    """Return in which file each tensor is. Raise TrainerError (USER_ERROR) naming an entry that is no file name."""
    try:
        found = json.loads(index.read_text())["weight_map"]
        entries = dict(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise user_error(f"{index} is not an index of safetensors files: {error!r}") from error
    for name, file in entries.items():
        if not isinstance(file, str) or not is_file_name(file):
            raise user_error(
                f"{index}: weight_map names the file {file!r} for {name}; give the plain name of a file beside it"
            )
    return entries


def _resolve_inside(folder: Path, file: str) -> Path:
    """Return the path of `file`. Raise TrainerError (USER_ERROR) where a link leads out of the folder.

    Links of Hugging Face's own cache lead from `snapshots/REVISION` into `blobs` beside it.
    """
    path, real = folder / file, (folder / file).resolve()
    homes = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        homes.append(folder.resolve().parent.parent / "blobs")
    if not is_file_name(file) or real.parent not in homes:
        raise user_error(f"{path} is a link to a file outside of the folder; replace it by the file itself")
    return path


def load_exported(folder: Path, sequence_length: int | None = None) -> tuple[Decoder, Tokenizer]:
    """Model (in evaluation mode, on the CPU, in its stored precision) and tokenizer. Raises TrainerError."""
    config, shape = read_config(folder), read_shape(folder)
    if not (folder / TOKENIZER_NAME).is_file():
        raise user_error(f"{folder} has no {TOKENIZER_NAME}: give the folder of an exported model")
    model = load_decoder(folder, shape, config["vocab_size"], sequence_length or config["max_position_embeddings"])
    return model, Tokenizer.from_file(str(folder / TOKENIZER_NAME))


def load_decoder(folder: Path, shape: ModelShape, vocab_size: int, sequence_length: int) -> Decoder:
    """Return a decoder with the weights of an exported model."""
    with torch.device("meta"):
        model = Decoder(shape, vocab_size, sequence_length)
    stored = StoredWeights(folder, shape)
    weights = {name: stored.whole(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()}
    dtype = weights["embedding.weight"].dtype
    model.to_empty(device="cpu")
    model.zero_buffers()
    for name, parameter in model.named_parameters():
        parameter.data = weights.pop(name).to(dtype)
    model.load_state_dict(weights, strict=False)  # the balance of experts, which stays in fp32
    model.eval()
    return model
