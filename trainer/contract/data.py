"""Where the text of a run comes from, how it becomes tokens, and how tokens become sequences."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.contract.base import SpecModel

Source = Annotated[
    str,
    Field(
        pattern=r"^(builtin:python-stdlib|dataset:[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
        r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?.*)$"
    ),
]
Format = Literal["auto", "text", "jsonl", "parquet", "chat"]
TextField = Annotated[str, Field(min_length=1, max_length=100)]
ValidationFraction = Annotated[float, Field(gt=0.0, lt=0.5)]
MEBIBYTE = 2**20


class MixturePart(SpecModel):
    """One source of several. Of the samples it gives `weight` divided by the sum of all weights."""

    source: Source
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    format: Format = "auto"
    text_field: TextField = "text"
    validation_fraction: ValidationFraction = 0.02


class DataSpec(SpecModel):
    """Where the text comes from: `builtin:python-stdlib`, `dataset:NAME` (uploaded) or `s3://bucket/prefix`; either
    one `source` or a `mixture` of several.

    `format` chat: lines of JSON whose `messages` are a conversation, made text by the chat template of `model.base` or
    one of ours; a loss is counted for what the assistant says.
    `packing`: `none` cuts the documents' stream into sequences, and attention crosses documents; `documents` fills
    each sequence with whole documents (longer ones are cut), and attention stays inside each.
    `on_corrupt`: whether a shard that is damaged in the store ends the run or is skipped; its samples are then
    taken from the next shard that is whole.
    Samples are shuffled over `shuffle_shards` shards (32 MiB of tokens each) at a time, so that a node needs to hold
    no more than twice as many; it keeps up to `cache_bytes` of them on its disk."""

    source: Source | None = None
    format: Format = "auto"
    text_field: TextField = "text"
    validation_fraction: ValidationFraction = 0.02
    mixture: Annotated[list[MixturePart], Field(max_length=64)] = []
    packing: Literal["none", "documents"] = "none"
    on_corrupt: Literal["fail", "skip"] = "fail"
    shuffle_shards: Annotated[int, Field(ge=1, le=1024)] = 8
    cache_bytes: Annotated[int, Field(ge=64 * MEBIBYTE)] = 16 * 1024 * MEBIBYTE

    @model_validator(mode="after")
    def _source_or_mixture(self) -> "DataSpec":
        if (self.source is None) == (not self.mixture):
            raise ValueError("give either source or mixture, not both and not neither")
        names = [part.source for part in self.mixture]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"mixture names {', '.join(twice)} more than once; add the weights and name it once")
        if self.packing != "documents" and any(part.format == "chat" for part in self.parts):
            raise ValueError("format `chat` needs packing `documents`, so that conversations do not see one another")
        for name in ("format", "text_field", "validation_fraction"):
            if self.mixture and getattr(self, name) != DataSpec.model_fields[name].default:
                raise ValueError(f"{name} belongs to each part of the mixture; give it there")
        return self

    @property
    def parts(self) -> list[MixturePart]:
        """The sources in order; a lone `source` is a mixture of one."""
        if self.source is None:
            return self.mixture
        return [
            MixturePart(
                source=self.source,
                format=self.format,
                text_field=self.text_field,
                validation_fraction=self.validation_fraction,
            )
        ]


class TokenizerSpec(SpecModel):
    """A byte-level BPE trained on the data itself; every text is representable, so there is no unknown token.

    All parts of a mixture share it. It is trained on the text of `trained_on`, a source of the mixture, by default
    the first. `kind` model: that of `model.base`, filled in with `digest` by whoever looks the model up."""

    kind: Literal["bpe", "model"] = "bpe"
    vocab_size: Annotated[int, Field(ge=258, le=262_144)] = 2048
    trained_on: Source | None = None
    digest: str = ""

    def trainer_among(self, parts: list[MixturePart]) -> int:
        """Which of `parts` the tokenizer is trained on. Raises ValueError when it is none of them."""
        names = [part.source for part in parts]
        if self.trained_on is None:
            return 0
        if self.trained_on not in names:
            raise ValueError(f"tokenizer.trained_on {self.trained_on!r} is none of the sources ({', '.join(names)})")
        return names.index(self.trained_on)


class PrepareSpec(SpecModel):
    """Data that is tokenised, sealed, stored and registered ahead of the runs that train on it: they find it by the
    same `data` (of which `packing` and what follows it play no part) and `tokenizer`."""

    data: DataSpec
    tokenizer: TokenizerSpec = TokenizerSpec()

    @model_validator(mode="after")
    def _one_trains(self) -> "PrepareSpec":
        if self.tokenizer.kind == "model":
            raise ValueError(
                "tokenizer.kind `model` comes with a model to train; the job that trains it prepares its data"
            )
        self.tokenizer.trainer_among(self.data.parts)
        return self
