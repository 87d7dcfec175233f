"""What is stored, and how a reader knows that it is whole.

Every object in the store is ciphertext (see `sealing`), written in parts of bounded size. A manifest names each
part with its size and digest and is written last: what no manifest names does not exist.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trainer.contract.base import WireModel

PART_PLAINTEXT_BYTES = 32 * 1024 * 1024
MANIFEST_NAME = "manifest.json"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def is_file_name(text: str) -> bool:
    """Return whether `text` names a file in a folder: one piece of a path, and neither . nor .. nor empty."""
    return text not in ("", ".", "..") and not any(letter in text for letter in "/\\\0")


class StoredPart(WireModel):
    """One object. `size` and `sha256` are of the ciphertext, `plaintext_size` of what is inside."""

    key: str
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256
    plaintext_size: Annotated[int, Field(ge=0)]


class StoredFile(WireModel):
    """A file of any size: its parts in order. `path` is relative, with forward slashes and no `..`."""

    path: Annotated[str, Field(pattern=r"^[\w./ -]+$", max_length=255)]
    parts: list[StoredPart]

    @field_validator("path")
    @classmethod
    def _stays_below(cls, path: str) -> str:
        if path.startswith("/") or any(piece in ("", ".", "..") for piece in path.split("/")):
            raise ValueError(f"{path!r} must be relative, without empty, . or .. pieces")
        return path

    @property
    def size(self) -> int:
        return sum(part.plaintext_size for part in self.parts)


class CheckpointManifest(WireModel):
    """State after `step` optimiser steps. `mesh` is axis name to size; `data_position` the next step's index;
    `micro_batch` the sequences of a micro-batch, which a resume on the same mesh takes again."""

    kind: Literal["checkpoint"] = "checkpoint"
    format: int = 1
    job_id: str
    attempt_id: str
    generation: int
    step: Annotated[int, Field(ge=0)]
    tokens_seen: int
    data_position: int
    world_size: int
    mesh: dict[str, int]
    micro_batch: int | None = None
    spec_digest: str
    dataset_fingerprint: str
    torch_version: str
    metrics: dict[str, float] = {}
    created_at: datetime
    files: list[StoredFile]


class ModelManifest(WireModel):
    """The exported model: safetensors in Hugging Face layout, tokenizer included."""

    kind: Literal["model"] = "model"
    format: int = 1
    job_id: str
    attempt_id: str
    step: int
    num_parameters: int
    metrics: dict[str, float] = {}
    created_at: datetime
    files: list[StoredFile]


class ProfileManifest(WireModel):
    """The traces that a node's ranks made of the steps `first_step` to `last_step`, for a viewer of Chrome's format.
    `number`: of the request. `problem`: why there are none; then nothing else counts."""

    kind: Literal["profile"] = "profile"
    format: int = 1
    number: Annotated[int, Field(ge=1)]
    node_rank: Annotated[int, Field(ge=0)]
    first_step: Annotated[int, Field(ge=0)] = 0
    last_step: Annotated[int, Field(ge=0)] = 0
    files: list[StoredFile] = []
    problem: Annotated[str, Field(max_length=2000)] = ""


class DatasetManifest(WireModel):
    """Tokenised shards of one data set under one tokenizer. `fingerprint` digests the tokens and the tokenizer;
    `dataset_id` is empty where the job has but one data set."""

    kind: Literal["dataset"] = "dataset"
    format: int = 1
    dataset_id: str = ""
    recipe: str
    fingerprint: str
    vocab_size: int
    train_tokens: int
    validation_tokens: int
    documents: int
    details: dict[str, Any] = {}
    created_at: datetime
    files: list[StoredFile]
