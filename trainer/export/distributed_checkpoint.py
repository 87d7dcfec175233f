"""Read the weights of a checkpoint of `torch.distributed.checkpoint` (DCP) under the names of Hugging Face's layout.

Its names are those of the layout, perhaps with a prefix such as `model.`, or those of Megatron Core.
"""

import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from trainer.contract.models import ModelShape
from trainer.export.folder import user_error

METADATA_NAME = ".metadata"
_EMBEDDING = "model.embed_tokens.weight"
_MEGATRON_EMBEDDING = "embedding.word_embeddings.weight"
_NAMED = 5  # names in an error
_METADATA = "torch.distributed.checkpoint.metadata"
_READ_CLASSES = {
    *(
        (_METADATA, name)
        for name in (
            "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
            "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("collections", "OrderedDict"),
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A tensor that is read when it is needed."""

    size: torch.Size
    dtype: torch.dtype
    read: Callable[[], Tensor]


class DistributedCheckpoint:
    """A folder of DCP. `sizes`: of its tensors by name."""

    def __init__(self, folder: Path) -> None:
        """Read the index. Raises TrainerError (USER_ERROR) where there is none that can be read."""
        self.folder = _find(folder)
        try:
            self._metadata = _read_metadata(self.folder / METADATA_NAME)
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
            raise user_error(f"{self.folder / METADATA_NAME} is no index of a checkpoint: {error}") from error
        entries = self._metadata.state_dict_metadata
        self._tensors = {name: each for name, each in entries.items() if isinstance(each, TensorStorageMetadata)}
        self.sizes = {name: each.size for name, each in self._tensors.items()}

    def source(self, name: str) -> Source:
        """Return a tensor by its name in the checkpoint."""
        return Source(self.sizes[name], self._tensors[name].properties.dtype, lambda: self._read(name))

    def _read(self, name: str) -> Tensor:
        state = {name: torch.empty(self.sizes[name], dtype=self._tensors[name].properties.dtype)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # this process reads alone
            try:
                dcp.load(state, storage_reader=_Reader(self.folder, self._metadata), no_dist=True)
            except (OSError, RuntimeError, dcp.CheckpointException, pickle.UnpicklingError) as error:
                raise user_error(
                    f"{name} in {self.folder} cannot be read: {error}; copy the checkpoint again"
                ) from error
        return state[name]


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]  # torch has no types here
    """Reads with an index that was read before, as the base class would unpickle anything."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._index = metadata

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the index."""
        return self._index


def map_names(
    checkpoint: DistributedCheckpoint, shape: ModelShape, expected: dict[str, torch.Size]
) -> tuple[dict[str, Source], list[str]]:
    """Return the tensors by their names in Hugging Face's layout, and the names in the checkpoint that are not part of
    the model. Raises TrainerError (USER_ERROR) that names what does not map."""
    ends = [_EMBEDDING, _MEGATRON_EMBEDDING]
    prefixes = [(end, name.removesuffix(end)) for end in ends for name in checkpoint.sizes if _ends_with(name, end)]
    prefixes = [(end, prefix) for end, prefix in prefixes if not _is_of_optimizer(prefix)]
    if len(prefixes) != 1:
        found = f"{len(prefixes)} tensors end with it" if prefixes else f"it has {_some(checkpoint.sizes)}"
        raise user_error(
            f"{checkpoint.folder} is not mapped: exactly one tensor must end with {_EMBEDDING} or "
            f"{_MEGATRON_EMBEDDING}, but {found}; save the model's state under one of these naming schemes"
        )
    end, prefix = prefixes[0]
    inside = {
        name.removeprefix(prefix): checkpoint.source(name) for name in checkpoint.sizes if name.startswith(prefix)
    }
    inside = {name: source for name, source in inside.items() if not _is_of_optimizer(name)}
    outside = [name for name in checkpoint.sizes if name.removeprefix(prefix) not in inside]
    sources = inside if end == _EMBEDDING else _from_megatron(checkpoint.folder, inside, shape, expected)
    if shape.tie_embeddings:
        sources.pop("lm_head.weight", None)
    sources = {name: each for name, each in sources.items() if not name.endswith("rotary_emb.inv_freq")}
    unknown, missing = sources.keys() - expected.keys(), expected.keys() - sources.keys()
    if unknown or missing:
        parts = [f"{_some(unknown)} have no place in it"] * bool(unknown) + [f"{_some(missing)} are missing"] * bool(
            missing
        )
        raise user_error(
            f"{checkpoint.folder} is not mapped to the model of config.json: {', and '.join(parts)}; give the "
            "config.json of the model that was saved"
        )
    for name, size in expected.items():
        if sources[name].size != size:
            raise user_error(
                f"{name} in {checkpoint.folder} has the shape {list(sources[name].size)}, but config.json requires "
                f"{list(size)}; give the config.json of the model that was saved"
            )
    return sources, outside


_LAYER = re.compile(r"decoder\.layers\.(?:(\d+)\.)?(.+)")
_MEGATRON = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
}
_MEGATRON_OUTER = {
    "decoder.final_layernorm.weight": "model.norm.weight",
    _MEGATRON_EMBEDDING: _EMBEDDING,
    "output_layer.weight": "lm_head.weight",
}


def _from_megatron(
    folder: Path, inside: dict[str, Source], shape: ModelShape, expected: dict[str, torch.Size]
) -> dict[str, Source]:
    """Return the tensors of a GPT model of Megatron Core, of which each layer has its own or one stacks all layers."""
    found: dict[str, Source] = {}
    for name, source in inside.items():
        outer, layer = _MEGATRON_OUTER.get(name), _LAYER.fullmatch(name)
        if outer is not None:
            # The vocabulary may be padded, for tensor parallelism.
            found[outer] = _rows(source, 0, expected[outer][0]) if outer in expected else source
        elif layer is None:
            raise user_error(
                f"{folder} has the tensor {name}, which is not mapped: only GPT models of Megatron Core are"
            )
        elif layer[1] is not None:
            found |= _megatron_layer(folder, int(layer[1]), layer[2], source, shape)
        else:
            for number in range(source.size[0]):
                found |= _megatron_layer(folder, number, layer[2], _element(source, number), shape)
    return found


def _megatron_layer(folder: Path, number: int, inner: str, source: Source, shape: ModelShape) -> dict[str, Source]:
    """Return the layout's tensors of one tensor of a layer."""
    start = f"model.layers.{number}"
    if inner in _MEGATRON:
        return {f"{start}.{_MEGATRON[inner]}": source}
    if inner == "mlp.linear_fc1.weight":
        rows = shape.intermediate_size
        return {
            f"{start}.mlp.gate_proj.weight": _rows(source, 0, rows),
            f"{start}.mlp.up_proj.weight": _rows(source, rows, rows),
        }
    if inner in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        kind = inner.rpartition(".")[2]
        queries = shape.num_heads // shape.num_kv_heads
        places = {"q": (0, queries), "k": (queries, 1), "v": (queries + 1, 1)}
        return {
            f"{start}.self_attn.{part}_proj.{kind}": _of_groups(source, shape, first, heads)
            for part, (first, heads) in places.items()
        }
    raise user_error(
        f"{folder} has the tensor decoder.layers.{number}.{inner}, which is not mapped: only dense GPT models of "
        "Megatron Core with RMSNorm and gated linear units are"
    )


def _of_groups(source: Source, shape: ModelShape, first: int, heads: int) -> Source:
    """Return some heads of each group: a group has the rows of its queries, of its key and of its value."""
    groups, size, rest = shape.num_kv_heads, shape.head_size, source.size[1:]

    def read() -> Tensor:
        grouped = source.read().reshape(groups, -1, size, *rest)
        return grouped[:, first : first + heads].reshape(groups * heads * size, *rest)

    return Source(torch.Size((groups * heads * size, *rest)), source.dtype, read)


def _element(source: Source, number: int) -> Source:
    return Source(source.size[1:], source.dtype, lambda: source.read()[number])


def _rows(source: Source, first: int, count: int) -> Source:
    available = max(0, min(count, source.size[0] - first))
    size = torch.Size((available, *source.size[1:]))
    return Source(size, source.dtype, lambda: source.read()[first : first + available])


def _find(folder: Path) -> Path:
    """Return the folder of the checkpoint: this one, or the only one in it."""
    if (folder / METADATA_NAME).is_file():
        return folder
    found = sorted(path.parent for path in folder.glob(f"*/{METADATA_NAME}"))
    if len(found) != 1:
        names = f"{', '.join(path.name for path in found)} are; leave one" if found else "there is none"
        raise user_error(
            f"{folder} must be a checkpoint of torch.distributed.checkpoint ({METADATA_NAME}) with a config.json, or "
            f"have one in a folder: {names}"
        )
    return found[0]


class _Unpickler(pickle.Unpickler):
    """Reads an index, and no other objects: a pickle of anything can run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of an index. Raises UnpicklingError for all others."""
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) in _READ_CLASSES or is_type:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}")


def _read_metadata(path: Path) -> Metadata:
    with path.open("rb") as file:
        metadata = _Unpickler(file).load()
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"it contains {type(metadata).__name__}")
    return metadata


def _ends_with(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _is_of_optimizer(name: str) -> bool:
    return any(part.startswith("optim") for part in name.split("."))


def _some(names: Any) -> str:
    chosen = sorted(names)
    more = f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else ""
    return ", ".join(chosen[:_NAMED]) + more
