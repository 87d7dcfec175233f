"""Where the text of a run comes from, and how it becomes tokens."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import SpecModel


class DataSpec(SpecModel):
    """Where the text comes from: `builtin:python-stdlib`, `dataset:NAME` (uploaded) or `s3://bucket/prefix`."""

    source: Annotated[
        str,
        Field(
            pattern=r"^(builtin:python-stdlib|dataset:[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
            r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?.*)$"
        ),
    ]
    format: Literal["auto", "text", "jsonl"] = "auto"
    text_field: Annotated[str, Field(min_length=1, max_length=100)] = "text"
    validation_fraction: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.02


class TokenizerSpec(SpecModel):
    """A byte-level BPE trained on the data itself; every text is representable, so there is no unknown token."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: Annotated[int, Field(ge=258, le=262_144)] = 2048
