"""Write weights in Hugging Face's layout: all ranks write files of bounded size, none holds the whole model."""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from trainer.contract.base import WireModel
from trainer.contract.manifest import StoredFile
from trainer.contract.models import ModelShape
from trainer.contract.timeouts import EXPORT_TIMEOUT
from trainer.export.names import fused_rows, hugging_face_names, is_expert_stack, stacked_rows
from trainer.models.lora import is_adapter, merge_adapters
from trainer.parallel.full_tensors import gather_stage_tensors, stage_shapes
from trainer.parallel.mesh import Mesh, all_reduce_world
from trainer.parallel.weights import Weights

INDEX_NAME = "model.safetensors.index.json"
MAX_FILE_BYTES = 4 * 2**30


class WrittenFile(WireModel):
    """What a rank reports to the first one about a file of weights."""

    tensors: dict[str, int]
    """Their bytes by name."""
    stored: StoredFile | None
    """None if the file stays in a folder that all ranks share."""


class WeightsWriter:
    """Writes the weights of a model from all ranks.

    Every rank gathers the tensors of its pipeline stage, one at a time, and keeps those of the files that it writes, of
    two files at most. The ranks of the stage take turns, and neighbours among the files are on different nodes.
    """

    def __init__(
        self,
        weights: Weights,
        shape: ModelShape,
        dtype: torch.dtype,
        *,
        processes_per_node: int,
        largest_bytes: int = MAX_FILE_BYTES,
        adapter_scale: float | None = None,
        read_base: Callable[[str, tuple[int, ...]], Tensor] | None = None,
    ) -> None:
        """Divide the tensors among files. `adapter_scale`: of adapters that are merged into their weights; `read_base`:
        read a full tensor by its name and shape, in place of a matrix in 4 bits."""
        self._weights, self._shape, self._dtype, self._scale = weights, shape, dtype, adapter_scale
        self._mesh, self._read_base = weights.mesh, read_base
        shapes = stage_shapes(weights, select=lambda name: not is_adapter(name))
        empty = ((name, torch.empty(full_shape, device="meta")) for name, full_shape in shapes)
        sizes = [
            (their_name, tensor.numel() * _stored_dtype(name, dtype).itemsize)
            for name, their_name, tensor in exported_tensors(empty, shape)
        ]
        self._files = split_tensors(sizes, largest_bytes)
        ranks = self._mesh.peers("replicate", "shard", "context", "tensor")
        writers = sorted(ranks, key=lambda rank: (rank % processes_per_node, rank))
        self._mine = [writers[number % len(writers)] == self._mesh.rank for number in range(len(self._files))]

    def write(self, folder: Path, store: dist.Store, after: Callable[[Path], StoredFile | None]) -> list[WrittenFile]:
        """Write the files to `folder`; a collective. `after` is called on the rank of each file once it is written.

        Return the reports of all files in their order on the first rank, nothing on the others.
        """
        first, count = _number_files(self._mesh, len(self._files))
        folder.mkdir(parents=True, exist_ok=True)

        def save(number: int, tensors: dict[str, Tensor]) -> None:
            path = folder / file_name(first + number, count)
            save_file(tensors, path, metadata={"format": "pt"})
            report = WrittenFile(tensors=self._files[number], stored=after(path))
            store.set(f"{first + number}", report.model_dump_json())

        with ThreadPoolExecutor(1, thread_name_prefix="export") as pool:
            saving: Future[None] | None = None
            for number, tensors in self._complete_files():
                if saving is not None:
                    saving.result()
                saving = pool.submit(save, number, tensors)
            if saving is not None:
                saving.result()
        if self._mesh.rank != 0:
            return []
        keys = [f"{number}" for number in range(count)]
        store.wait(keys, EXPORT_TIMEOUT)
        return [WrittenFile.model_validate_json(store.get(key)) for key in keys]

    def _complete_files(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Gather all tensors, and yield each file that this rank writes once its tensors are there, on the CPU."""
        number_of = {name: number for number, file in enumerate(self._files) for name in file}
        named = gather_stage_tensors(self._weights, read_base=self._read_base)
        tensors: dict[str, Tensor] = {}
        merged = named if self._scale is None else merge_adapters(named, self._scale)
        for name, their_name, tensor in exported_tensors(merged, self._shape):
            number = number_of[their_name]
            if not self._mine[number]:
                continue
            tensors[their_name] = tensor.to("cpu", _stored_dtype(name, self._dtype), copy=True).contiguous()
            if len(tensors) == len(self._files[number]):
                yield number, tensors
                tensors = {}


def exported_tensors(named: Iterable[tuple[str, Tensor]], shape: ModelShape) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (name of a parameter, name in the layout, tensor) for parameters in the order of the model: one for each
    expert of a stack, unless the layout stacks them too, and one for parameters that the layout has in one tensor,
    under the name of the last."""
    parts: list[Tensor] = []
    for name, whole in named:
        theirs = hugging_face_names(name, shape)
        fused, stacked = fused_rows(name, shape), stacked_rows(name, shape)
        if stacked is not None:
            parts.append(whole)
            if len(parts) == stacked.parts:
                rows = torch.stack(parts, dim=2).flatten(1, 2) if stacked.in_turns else torch.cat(parts, dim=1)
                yield name, theirs[0], rows.mT if rows.dim() == 3 else rows
                parts = []
        elif fused is not None:
            parts.append(whole)
            if sum(part.shape[0] for part in parts) < fused[1]:
                continue
            yield name, theirs[0], torch.cat(parts)
            parts = []
        else:
            tensors = whole.unbind() if is_expert_stack(name) else [whole] * len(theirs)
            yield from ((name, their_name, each) for their_name, each in zip(theirs, tensors, strict=True))


def split_tensors(sizes: Iterable[tuple[str, int]], largest_bytes: int) -> list[dict[str, int]]:
    """Return the tensors of each file by name, with their bytes, in the given order.

    A file has at most `largest_bytes`, or one tensor.
    """
    files: list[dict[str, int]] = []
    filled = 0
    for name, size in sizes:
        if not files or filled + size > largest_bytes:
            files.append({})
            filled = 0
        files[-1][name] = size
        filled += size
    return files


def file_name(number: int, count: int) -> str:
    """Return the name of the file `number`, from 0, of `count`."""
    return "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def write_index(folder: Path, files: list[dict[str, int]]) -> None:
    """Write the index of several files, given the bytes of each one's tensors. A single file needs none."""
    if len(files) > 1:
        where = {name: file_name(number, len(files)) for number, file in enumerate(files) for name in file}
        content = {"metadata": {"total_size": sum(sum(file.values()) for file in files)}, "weight_map": where}
        (folder / INDEX_NAME).write_text(json.dumps(content, indent=2) + "\n")


def _stored_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Return the precision that a parameter is stored in: biases of routers stay in fp32, as in `transformers`."""
    return torch.float32 if name.endswith("mlp.balance") else dtype


def _number_files(mesh: Mesh, count: int) -> tuple[int, int]:
    """Return the number of this stage's first file, and the number of files of all stages; a collective."""
    counts = torch.zeros(mesh.size("pipeline"), dtype=torch.int64, device=mesh.device)
    stage = mesh.coordinate("pipeline")
    if mesh.coordinate("replicate", "shard", "context", "tensor") == 0:
        counts[stage] = count
    found = all_reduce_world(counts, mesh).tolist()
    return sum(found[:stage]), sum(found)
