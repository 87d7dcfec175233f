"""Write a model as a GGUF file, which llama.cpp and programs built on it run.

Names of tensors and keys are those of the package `gguf`
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, LlamaFileType
from torch import Tensor

from trainer.contract.hugging_face import TOKENIZER_SETTINGS_NAME, end_of_text_id
from trainer.contract.models import ModelShape
from trainer.contract.run import EndClass
from trainer.data.chat import template_of
from trainer.errors import TrainerError
from trainer.export.gguf_tokenizer import read_tokenizer
from trainer.export.names import hugging_face_names
from trainer.models.attention import rotary_frequencies

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
_FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
_LARGEST_F16 = 65504.0


class GgufFile:
    """A GGUF file that is written tensor by tensor, in the order of `shapes`: of the parameters by our names."""

    def __init__(
        self, folder: Path, config: dict[str, Any], shape: ModelShape, shapes: dict[str, torch.Size], precision: str,
        path: Path,
    ) -> None:  # fmt: skip
        """Write the metadata. Raises TrainerError where GGUF cannot express the model, before there is a file."""
        architecture = _architecture(folder, config, shape)
        self._shape, self._folder, self._permutes = shape, folder, architecture is gguf.MODEL_ARCH.LLAMA
        self._precision = GGMLQuantizationType[precision.upper()]
        tokenizer = read_tokenizer(folder, config["vocab_size"])
        names = gguf.get_tensor_name_map(architecture, shape.num_layers)
        self._names = {name: _name(names, hugging_face_names(name, shape)[0]) for name in shapes}
        self._writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[architecture])
        self._add_sizes(config, precision)
        add_tokenizer(self._writer, tokenizer)
        self._add_special_tokens(config)
        self.size_bytes = 0
        factors = self._rotary_factors(config["max_position_embeddings"])
        if factors is not None:
            self._add_info("rope_freqs.weight", factors.shape, GGMLQuantizationType.F32)
        for name, size in shapes.items():
            self._add_info(self._names[name], size, self._type_of(size))
        self._writer.write_header_to_file(path)
        self._writer.write_kv_data_to_file()
        self._writer.write_ti_data_to_file()
        if factors is not None:
            self._writer.write_tensor_data(factors)

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Write the next parameter. Return its values as they are stored, in fp32."""
        values = tensor.float()
        kind = self._type_of(tensor.shape)
        if kind is GGMLQuantizationType.F16 and float(values.abs().max()) > _LARGEST_F16:
            raise TrainerError(
                EndClass.USER_ERROR,
                f"{self._folder}: {name} has values above {_LARGEST_F16:g}, which f16 cannot express; choose bf16",
            )
        heads = self._heads(name)
        if heads is not None:  # llama.cpp rotates neighbours: rows of a head's halves take turns
            values = values.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        data = gguf.quants.quantize(values.contiguous().numpy(), kind)
        self._writer.write_tensor_data(data)
        stored = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind)).reshape(tensor.shape))
        return stored if heads is None else stored.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)

    def finish(self) -> None:
        """Complete the file."""
        self._writer.flush()
        self._writer.close()

    def _heads(self, name: str) -> int | None:
        """Return the heads of a matrix with rows that are stored in another order; None for all others."""
        if not self._permutes:
            return None
        if ".attention.query." in name:
            return self._shape.num_heads
        return self._shape.num_kv_heads if ".attention.key." in name else None

    def _type_of(self, size: torch.Size) -> GGMLQuantizationType:
        """Return how a tensor is stored: vectors in f32, and matrices that blocks do not divide in f16."""
        if len(size) == 1:
            return GGMLQuantizationType.F32
        block, _ = gguf.GGML_QUANT_SIZES[self._precision]
        return self._precision if size[-1] % block == 0 else GGMLQuantizationType.F16

    def _add_info(self, name: str, size: tuple[int, ...], kind: GGMLQuantizationType) -> None:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        num_bytes = int(np.prod(size)) // block * block_bytes
        self.size_bytes += num_bytes
        self._writer.add_tensor_info(name, size, np.dtype(np.float32), num_bytes, raw_dtype=kind)

    def _add_sizes(self, config: dict[str, Any], precision: str) -> None:
        writer, shape = self._writer, self._shape
        writer.add_name(self._folder.resolve().name)
        writer.add_file_type(_FILE_TYPES[precision])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_vocab_size(config["vocab_size"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(shape.hidden_size)
        writer.add_block_count(shape.num_layers)
        writer.add_feed_forward_length(shape.intermediate_size)
        writer.add_head_count(shape.num_heads)
        writer.add_head_count_kv(shape.num_kv_heads)
        writer.add_key_length(shape.head_size)
        writer.add_value_length(shape.head_size)
        writer.add_rope_dimension_count(shape.head_size)
        writer.add_rope_freq_base(shape.rope_theta)
        writer.add_layer_norm_rms_eps(shape.norm_epsilon)
        if shape.rope_scaling is not None and shape.rope_scaling.kind == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(shape.rope_scaling.factor)

    def _add_special_tokens(self, config: dict[str, Any]) -> None:
        end = end_of_text_id(config)
        if end is not None:
            self._writer.add_eos_token_id(end)
        if self._shape.pad_token_id is not None:
            self._writer.add_pad_token_id(self._shape.pad_token_id)
        settings = self._folder / TOKENIZER_SETTINGS_NAME
        template = template_of(self._folder, json.loads(settings.read_text()) if settings.is_file() else {})
        if template:
            self._writer.add_chat_template(template)

    def _rotary_factors(self, sequence_length: int) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        """Return what each frequency of rotary positions is divided by, where that is not one number for all."""
        if self._shape.rope_scaling is None or self._shape.rope_scaling.kind == "linear":
            return None
        plain = rotary_frequencies(self._shape.model_copy(update={"rope_scaling": None}), sequence_length)
        factors = plain / rotary_frequencies(self._shape, sequence_length)
        return np.asarray(factors.numpy(), dtype=np.float32)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any) -> None:
    """Add the vocabulary and the merges."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre_tokenizer)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types([int(kind) for kind in tokenizer.kinds])
    writer.add_token_merges(tokenizer.merges)
    writer.add_add_bos_token(tokenizer.begin is not None)
    if tokenizer.begin is not None:
        writer.add_bos_token_id(tokenizer.begin)


def _architecture(folder: Path, config: dict[str, Any], shape: ModelShape) -> gguf.MODEL_ARCH:
    """Return GGUF's name of the family. Raises TrainerError (USER_ERROR) where it computes something else."""
    family = config["model_type"]
    window, length = shape.sliding_window, config["max_position_embeddings"]
    if window is not None and window < length:
        raise TrainerError(
            EndClass.USER_ERROR,
            f"{folder} has a sliding_window of {window}, which GGUF cannot express for {family}; it may be converted "
            f"with max_position_embeddings {window} in its config.json in place of {length}",
        )
    scaling, architecture = shape.rope_scaling, _ARCHITECTURES[family]
    # llama.cpp refuses a file of another architecture that has a factor for each frequency.
    known = ("linear", "llama3") if architecture is gguf.MODEL_ARCH.LLAMA else ("linear",)
    if scaling is not None and scaling.kind not in known:
        raise TrainerError(
            EndClass.USER_ERROR,
            f"{folder} has rope_scaling of the kind {scaling.kind}, which is not converted to GGUF for {family}: "
            f"{' and '.join(known)} can be; keep this model as safetensors",
        )
    return architecture


def _name(names: gguf.TensorNameMap, theirs: str) -> str:
    """Return GGUF's name of a tensor of Hugging Face's layout."""
    found = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
    assert found is not None, f"{theirs} is of a family that the package knows"
    return found
