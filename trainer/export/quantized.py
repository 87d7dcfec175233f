"""Write a model with weights in 8 or 4 bits as a folder that `transformers` loads with torchao."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchao.core.config import AOBaseConfig, config_to_dict
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_

from trainer.contract.hugging_face import CONFIG_NAME
from trainer.contract.models import ModelShape
from trainer.export.folder import user_error
from trainer.export.names import hugging_face_names
from trainer.export.shards import ShardWriter
from trainer.export.write import MAX_FILE_BYTES

_NAMES = "tensor_names"  # in the description, all others are names of tensors
GROUP = 32
"""Numbers in 4 bits with one scale."""


class QuantizedFolder:
    """A folder in which the matrices of the layers are quantized; embeddings, head, norms and biases are as they were.

    `int8`: one scale for each row. `int4`: one for each group of GROUP numbers of a row.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], shape: ModelShape, shapes: dict[str, torch.Size], form: str,
        output: Path, largest_bytes: int = MAX_FILE_BYTES,
    ) -> None:  # fmt: skip
        """Write the configuration. Raises TrainerError (USER_ERROR) for a matrix that groups do not divide."""
        for name, size in shapes.items():
            if form == "int4" and _is_quantized(name, size) and size[-1] % GROUP:
                raise user_error(
                    f"{folder}: the rows of {name} have {size[-1]} numbers, no multiple of {GROUP}, the size of a "
                    "group of int4; choose int8"
                )
        self._shape, self._config = shape, quantization(form)
        self._shards = ShardWriter(output, largest_bytes, self._flatten)
        self._described: dict[str, str] = {}
        described = {
            "quant_method": "torchao",
            "quant_type": {"default": config_to_dict(self._config)},
            "include_input_output_embeddings": False,
            "modules_to_not_convert": None,
            "untie_embedding_weights": False,
        }
        content = {**config, "quantization_config": described}
        (output / CONFIG_NAME).write_text(json.dumps(content, indent=2) + "\n")

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Write the next parameter. Return its values as they are stored."""
        theirs = hugging_face_names(name, self._shape)[0]
        stored = tensor
        if _is_quantized(name, tensor.shape):
            layer = nn.Linear(tensor.shape[1], tensor.shape[0], bias=False, device="meta")
            layer.weight = nn.Parameter(tensor, requires_grad=False)
            quantize_(layer, self._config)
            stored = layer.weight
        self._shards.add(theirs, stored.detach())
        return stored.dequantize() if stored is not tensor else tensor

    def finish(self) -> None:
        """Complete the files."""
        self._shards.finish()

    def _flatten(self, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the plain tensors, and a description of them and of all before: `transformers` joins the descriptions
        of all files, in which the last list of names is the one that counts."""
        flat, described = flatten_tensor_state_dict(tensors)
        names = [*json.loads(self._described.get(_NAMES, "[]")), *json.loads(described[_NAMES])]
        self._described |= {**described, _NAMES: json.dumps(list(dict.fromkeys(names)))}
        return flat, self._described


def quantization(form: str) -> AOBaseConfig:
    """Return torchao's configuration of a form."""
    if form == "int8":
        return Int8WeightOnlyConfig()
    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP))


def _is_quantized(name: str, size: torch.Size) -> bool:
    return name.startswith("blocks.") and len(size) == 2
