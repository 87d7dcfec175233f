"""What is stored, and how a reader knows that it is whole.

Every object in the store is ciphertext (see `encryption`), written in parts of bounded size. A manifest names each
part with its size and digest and is written last: what no manifest names does not exist. Its `tag` authenticates all
of it under the data key of its job (of a prepared data set, of the data set): readers of a manifest call
`encryption.check_manifest` first.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field, field_validator

from trainer.contract.base import MAX_INT32, Count32, Count64, FiniteMetrics, JsonObject, WireModel

PART_PLAINTEXT_BYTES = 32 * 1024 * 1024
PARTS_IN_FLIGHT = 3  # parts of a file that are stored at a time, at most; one where training is on the CPU
MANIFEST_NAME = "manifest.json"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def is_file_name(text: str) -> bool:
    """Return whether `text` names a file in a folder: one piece of a path, and neither . nor .. nor empty."""
    return text not in ("", ".", "..") and not any(letter in text for letter in "/\\\0")


class StoredPart(WireModel):
    """One object. `size` and `sha256` are of the ciphertext, `plaintext_size` of what is inside."""

    key: str
    size: Count64
    sha256: Sha256
    plaintext_size: Count64


class StoredFile(WireModel):
    """A file of any size: its parts in order. `path` is relative, with forward slashes and no `..`.

    `plaintext_sha256`: of the decrypted file; exported models have it, so that they can be signed without being read.
    """

    path: Annotated[str, Field(pattern=r"^[\w./ -]+$", max_length=255)]
    parts: list[StoredPart]
    plaintext_sha256: Sha256 | None = None

    @field_validator("path")
    @classmethod
    def _stays_below(cls, path: str) -> str:
        if path.startswith("/") or any(piece in ("", ".", "..") for piece in path.split("/")):
            raise ValueError(f"{path!r} must be relative, without empty, . or .. pieces")
        return path

    @property
    def size(self) -> int:
        """Return the size of the decrypted file in bytes."""
        return sum(part.plaintext_size for part in self.parts)


class Manifest(WireModel):
    """What all manifests share. `tag` is empty until `encryption.authenticate` sets it."""

    kind: str
    files: list[StoredFile]
    tag: Annotated[str, Field(max_length=1000)] = ""

    def authenticated_bytes(self) -> bytes:
        """Return everything but the tag in a form that survives JSON and a database.

        Fields with their default value are left out, so that a field that a later version adds changes nothing.
        """
        content = self.model_dump(exclude={"tag", "kind"}, exclude_defaults=True)
        return json.dumps(
            {"kind": self.kind, **_canonical(content)}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()


def _canonical(value: Any) -> Any:
    """Return `value` with times in UTC and floating-point numbers as text: a database may store -0.0 as 0.0."""
    if isinstance(value, dict):
        return {key: _canonical(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return (value + 0.0).hex() if isinstance(value, float) else value


BEST_LOSS, BEST_STEP = "evaluation/best_loss", "evaluation/best_step"
"""Metrics that checkpoints record: the lowest loss on held-out data up to then, and after how many steps it was."""
EVALUATION_STEP = "evaluation/step"
"""Metric that checkpoints record: after how many steps `evaluation/loss` was measured."""


class Saved(Protocol):
    """A checkpoint, or the record of one."""

    @property
    def step(self) -> int:
        """Return the steps done."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return what it recorded."""


AnySaved = TypeVar("AnySaved", bound=Saved)


def find_best(checkpoints: Iterable[AnySaved]) -> AnySaved | None:
    """Return the one that was saved after the evaluation with the lowest loss; None if there is none of an evaluation
    that was the best up to then."""
    best: AnySaved | None = None
    for each in checkpoints:
        is_best_yet = each.metrics.get(BEST_STEP) == each.step and BEST_LOSS in each.metrics
        if is_best_yet and (best is None or each.metrics[BEST_LOSS] < best.metrics[BEST_LOSS]):
            best = each
    return best


class CheckpointId(WireModel):
    """Identifies a checkpoint of a job."""

    attempt_id: Annotated[str, Field(max_length=40)]
    generation: Count32
    step: Count32


class CheckpointManifest(Manifest):
    """State after `step` optimiser steps. `mesh` is axis name to size; `data_position` the next step's index;
    `micro_batch` the sequences of a micro-batch, which a resume on the same mesh takes again; `progress` what training
    knows beside its tensors, as JSON (`trainer/checkpoint/shadow.py`)."""

    kind: Literal["checkpoint"] = "checkpoint"
    format: Count32 = 1
    job_id: str
    attempt_id: str
    generation: Count32
    step: Count32
    tokens_seen: Count64
    data_position: Count64
    world_size: Count32
    mesh: dict[str, Count32]
    micro_batch: Count32 | None = None
    spec_digest: str
    dataset_fingerprint: str
    torch_version: str
    metrics: FiniteMetrics = {}
    progress: Annotated[str, Field(max_length=100_000)] = ""
    created_at: datetime
    files: list[StoredFile]

    @property
    def id(self) -> CheckpointId:
        """Return what identifies the checkpoint within its job."""
        return CheckpointId(attempt_id=self.attempt_id, generation=self.generation, step=self.step)


class ModelManifest(Manifest):
    """The exported model: safetensors in Hugging Face layout, tokenizer included."""

    kind: Literal["model"] = "model"
    format: Count32 = 1
    job_id: str
    attempt_id: str
    step: Count32
    num_parameters: Count64
    metrics: FiniteMetrics = {}
    created_at: datetime
    files: list[StoredFile]


class UploadManifest(Manifest):
    """The files of an uploaded data set, authenticated under its key."""

    kind: Literal["upload"] = "upload"
    dataset_id: str
    files: list[StoredFile]


class LogManifest(Manifest):
    """The compressed log of one attempt, made by the platform."""

    kind: Literal["log"] = "log"
    format: int = 1
    job_id: str
    attempt_id: str
    step: int = 0
    files: list[StoredFile]


class ProfileManifest(Manifest):
    """The traces that a node's ranks made of the steps `first_step` to `last_step`, for a viewer of Chrome's format.
    `number`: of the request. `problem`: why there are none; then nothing else counts."""

    kind: Literal["profile"] = "profile"
    format: Count32 = 1
    job_id: str = ""
    attempt_id: str = ""
    number: Annotated[int, Field(ge=1, le=MAX_INT32)]
    node_rank: Count32
    first_step: Count32 = 0
    last_step: Count32 = 0
    files: list[StoredFile] = []
    problem: Annotated[str, Field(max_length=2000)] = ""


class DataReportManifest(Manifest):
    """The report of one data set (`data_report.DataReport`) as JSON, authenticated and encrypted under the data set's
    key. `digest`: of the report."""

    kind: Literal["data_report"] = "data_report"
    format: Count32 = 1
    job_id: str
    attempt_id: str
    dataset_id: str
    digest: Sha256
    created_at: datetime
    files: list[StoredFile]


class DatasetManifest(Manifest):
    """Tokenised shards of one data set under one tokenizer. `fingerprint` digests the tokens and the tokenizer;
    `dataset_id` is empty where the job has but one data set."""

    kind: Literal["dataset"] = "dataset"
    format: Count32 = 1
    dataset_id: str = ""
    recipe: str
    fingerprint: str
    vocab_size: Count32
    train_tokens: Count64
    validation_tokens: Count64
    documents: Count64
    details: JsonObject = {}
    created_at: datetime
    files: list[StoredFile]
