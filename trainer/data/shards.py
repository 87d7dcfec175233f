"""Tokens on disk: one flat file per split plus an index; read by memory map, never parsed."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

INDEX_NAME = "dataset.json"
TOKENIZER_NAME = "tokenizer.json"
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class DatasetIndex:
    """What a prepared folder holds. `dtype` is uint16 where every id fits, else uint32."""

    fingerprint: str
    vocab_size: int
    train_tokens: int
    validation_tokens: int
    documents: int
    dtype: str

    def write(self, folder: Path) -> None:
        """Written last: a folder without it is not a data set."""
        partial = folder / f".{INDEX_NAME}.partial"
        partial.write_text(json.dumps(asdict(self), indent=2))
        partial.replace(folder / INDEX_NAME)

    @classmethod
    def read(cls, folder: Path) -> "DatasetIndex":
        return cls(**json.loads((folder / INDEX_NAME).read_text()))


def token_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def open_split(folder: Path, split: str) -> NDArray[np.integer]:
    """All tokens of a split as a read-only memory map, [num_tokens]."""
    assert split in SPLITS, split
    return np.memmap(folder / f"{split}.bin", dtype=DatasetIndex.read(folder).dtype, mode="r")
