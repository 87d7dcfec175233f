"""Write safetensors files of bounded size from one process, tensor by tensor."""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from trainer.export.write import MAX_FILE_BYTES, file_name, write_index

Flatten = Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], dict[str, str]]]
"""Return tensors as they are written, and what the metadata of their file says about them."""


class ShardWriter:
    """Collects tensors, and writes a file before they exceed `largest_bytes`."""

    def __init__(
        self, folder: Path, largest_bytes: int = MAX_FILE_BYTES, flatten: Flatten = lambda tensors: (tensors, {})
    ) -> None:
        self._folder, self._largest_bytes, self._flatten = folder, largest_bytes, flatten
        self._pending: dict[str, Tensor] = {}
        self._filled = 0
        self._files: list[dict[str, int]] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Add a tensor."""
        size = sum(each.nbytes for each in self._flatten({name: tensor})[0].values())
        if self._pending and self._filled + size > self._largest_bytes:
            self._write()
        self._pending[name] = tensor
        self._filled += size

    def finish(self) -> None:
        """Write the rest, give the files their names, and write the index if there are several."""
        self._write()
        for number in range(len(self._files)):
            self._unfinished(number).rename(self._folder / file_name(number, len(self._files)))
        write_index(self._folder, self._files)

    def _write(self) -> None:
        flat, metadata = self._flatten(self._pending)
        tensors = {name: tensor.contiguous() for name, tensor in flat.items()}
        save_file(tensors, self._unfinished(len(self._files)), metadata={**metadata, "format": "pt"})
        self._files.append({name: tensor.nbytes for name, tensor in tensors.items()})
        self._pending, self._filled = {}, 0

    def _unfinished(self, number: int) -> Path:
        return self._folder / f"unfinished-{number}"
