"""Where the text of a run comes from, how it becomes tokens, and how tokens become sequences."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from trainer.contract.base import CheckedModel, FieldConflict, Pattern, SpecModel
from trainer.contract.units import SIZE

Source = Annotated[
    str,
    Pattern(
        r"^(builtin:python-stdlib|dataset:[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@([1-9][0-9]{0,8}|[a-z][a-z0-9-]{0,62}))?"
        r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?.*)$",
        "builtin:python-stdlib, dataset:NAME, dataset:NAME@NUMBER or dataset:NAME@ALIAS of an uploaded data set, or "
        "s3://bucket/prefix",
    ),
]
Format = Literal["auto", "text", "jsonl", "parquet", "chat", "preference", "unpaired"]
PREFERENCE_FORMATS = ("preference", "unpaired")
TextField = Annotated[str, Field(min_length=1, max_length=100)]
ValidationFraction = Annotated[float, Field(gt=0.0, lt=0.5)]
SequenceLength = Annotated[int, Field(ge=8, le=1_048_576)]
MEBIBYTE = 2**20


class MixturePart(SpecModel):
    """One of several sources."""

    source: Annotated[Source, Field(examples=["dataset:my-corpus"])]
    """`builtin:python-stdlib`, `dataset:NAME` for an uploaded data set of the team (its newest version; `@NUMBER` or
    `@ALIAS` after the name for another version), or `s3://bucket/prefix` in a bucket that an administrator has granted
    to the team. Each source may occur once."""
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Share of the training samples that come from this source, relative to the sum of all weights."""
    format: Format = "auto"
    """Format of the files. `auto` goes by the name: `.jsonl` and `.ndjson` are `jsonl`, `.parquet` and `.pq` are
    `parquet`, and all others `text`. `chat` needs packing `documents`; so do `preference` and
    `unpaired`, with `long_documents: drop`, which belong to `training.preference`."""
    text_field: TextField = "text"
    """Field of a JSON line, or column of a parquet file, that holds the text. With the format `chat` it holds the list
    of messages, and its default is `messages`. Ignored for plain text and preference data."""
    validation_fraction: ValidationFraction = 0.02
    """Fraction of the documents held out for evaluation: every k-th document, where k is 1 divided by the fraction,
    rounded. A file of plain text is one document. Of fewer than k documents, this fraction at the end of each long file
    of plain text, otherwise the last document. A single document is cut in two."""


LongDocuments = Literal["cut", "truncate", "drop"]


class DataSpec(CheckedModel):
    """The text to train on, from one `source` or a `mixture` of several, and how it becomes sequences."""

    source: Annotated[Source | None, Field(examples=["builtin:python-stdlib"])] = None
    """`builtin:python-stdlib`, `dataset:NAME` for an uploaded data set of the team, or `s3://bucket/prefix` in a bucket
    that an administrator has granted to the team. `dataset:NAME` is the newest version, `dataset:NAME@NUMBER` the one
    with this number, `dataset:NAME@ALIAS` the one that the alias names; which one is fixed when the job is submitted.
    Give either `source` or `mixture`."""
    format: Format = "auto"
    """Format of the files. `auto` goes by the name: `.jsonl` and `.ndjson` are `jsonl`, `.parquet` and `.pq` are
    `parquet`, and all others `text`. `chat` reads JSON lines in which `messages` are a conversation, with a `role` and
    a `content` each; they become text by the chat template of `model.base` or a built-in one, and only what the
    assistant says counts in the loss. It needs packing `documents`. `preference` reads JSON lines with the fields
    `chosen`, `rejected` and perhaps `prompt`, which are all texts or all lists of messages; without `prompt` it is what
    both answers begin with. It belongs to `training.preference`, and needs packing `documents` and
    `long_documents: drop`, which leaves pairs out that are longer than a sequence: both answers, each with the prompt,
    are in the same one. `unpaired` reads JSON lines with an answer and its `label`, true or false: the
    fields `prompt` and `completion`, both texts or both lists of messages, or `messages`, of which the answer is what
    follows the user's last message. It belongs to `training.preference` with loss `kto`, and needs the same. With
    `mixture`, set it in each part."""
    text_field: TextField = "text"
    """Field of a JSON line, or column of a parquet file, that holds the text. With the format `chat` it holds the list
    of messages, and its default is `messages`. Ignored for plain text and preference data. With
    `mixture`, set it in each part."""
    validation_fraction: ValidationFraction = 0.02
    """Fraction of the documents held out for evaluation: every k-th document, where k is 1 divided by the fraction,
    rounded. A file of plain text is one document. Of fewer than k documents, this fraction at the end of each long file
    of plain text, otherwise the last document. A single document is cut in two. With `mixture`, set it in each part."""
    mixture: Annotated[
        list[MixturePart],
        Field(
            max_length=64,
            examples=[[{"source": "builtin:python-stdlib"}, {"source": "dataset:my-corpus", "weight": 3.0}]],
        ),
    ] = []
    """Up to 64 sources, mixed by their weights. Give either `source` or `mixture`."""
    packing: Literal["none", "documents"] = "none"
    """How documents become sequences. `none` concatenates them and cuts the stream, and attention crosses documents.
    `documents` fills each sequence with complete documents, cuts only those that are longer, pads the rest, and keeps
    attention inside each document. Ignored in `prepare`."""
    long_documents: Annotated[LongDocuments, Field(exclude_if=lambda value: value == "cut")] = "cut"
    """What happens to a document or conversation that is longer than a sequence, with packing `documents`: `cut` makes
    several sequences of it, of which the later ones lack what came before; `truncate` keeps the beginning, `drop`
    nothing. Ignored in `prepare`."""
    on_corrupt: Literal["fail", "skip"] = "fail"
    """What to do when a shard of prepared data is damaged in the store: `fail` ends the run with the reason
    `data_error`, `skip` takes the samples from the next intact shard and records an event. Ignored in `prepare`."""
    shuffle_shards: Annotated[int, Field(ge=1, le=1024)] = 8
    """Number of shards, of up to 32 MiB of tokens each, that samples are shuffled over at a time. The nodes of a run
    share them: with more shards each node fetches a smaller part of the data. Ignored in `prepare`."""
    cache_bytes: Annotated[int, Field(ge=64 * MEBIBYTE), SIZE] = 16 * 1024 * MEBIBYTE
    """Disk space for shards that a node downloads, in bytes, divided equally among the sources. Ignored in
    `prepare`."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if (self.source is None) == (not self.mixture):
            yield FieldConflict("", "give either source or mixture, not both and not neither")
        names = [part.source for part in self.mixture]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"mixture names {', '.join(twice)} more than once; add the weights and name it once"
            yield FieldConflict("mixture", message)
        if self.packing != "documents" and self.long_documents != "cut":
            message = (
                f"long_documents {self.long_documents} needs packing `documents`; set it, or leave long_documents out"
            )
            yield FieldConflict("long_documents", message, ("packing",))
        if self.packing != "documents" and any(part.format == "chat" for part in self.parts):
            message = "format `chat` needs packing `documents`, so that conversations do not see one another"
            yield FieldConflict("packing", message, ("format", "mixture"))
        for form in sorted({part.format for part in self.parts} & {*PREFERENCE_FORMATS}):
            yield from self._preference_conflicts(form)
        for name in ("format", "text_field", "validation_fraction"):
            if self.mixture and getattr(self, name) != DataSpec.model_fields[name].default:
                yield FieldConflict(name, f"{name} belongs to each part of the mixture; give it there", ("mixture",))

    def _preference_conflicts(self, form: str) -> Iterator[FieldConflict]:
        if self.packing != "documents":
            message = f"format `{form}` needs packing `documents`, so that answers do not see one another; set it"
            yield FieldConflict("packing", message, ("format", "mixture"))
        elif self.long_documents != "drop":
            separated, left_out = (
                ("the answers of a pair that is", "such pairs")
                if form == "preference"
                else ("an answer from its prompt, if both are", "such examples")
            )
            message = (
                f"long_documents {self.long_documents} would separate {separated} longer than a sequence; set it to "
                f"drop, which leaves {left_out} out"
            )
            yield FieldConflict("long_documents", message, ("format", "mixture"))

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


END_OF_TEXT = "<|endoftext|>"
"""The token that ends a document, in tokenizers that are trained here."""
BYTE_TOKENS = 256
MIN_SAMPLE_CHARACTERS, SAMPLE_CHARACTERS_PER_TOKEN = 4_000_000, 512
SpecialToken = Annotated[str, Field(min_length=1, max_length=100)]


class TokenizerSpec(CheckedModel):
    """How text becomes tokens. All parts of a mixture share one tokenizer."""

    kind: Literal["bpe", "model"] = "bpe"
    """`bpe` trains a byte-level BPE on the data itself, which can represent every text. `model` is the tokenizer of
    `model.base`; the platform sets it for every job with a base model."""
    vocab_size: Annotated[int, Field(ge=258, le=262_144)] = 2048
    """Largest number of entries in the vocabulary. With kind `model` the platform sets it to that of the base model."""
    trained_on: Annotated[Source | None, Field(examples=["dataset:my-corpus"])] = None
    """Source of the mixture whose text the tokenizer is trained on. Without it, the first source. Ignored with kind
    `model`."""
    sample_characters: Annotated[int, Field(ge=10_000, le=2**33)] | Literal["auto"] = "auto"
    """Characters of the training sample, taken evenly from the source, which the node holds in memory. `auto` is 512
    for each entry of `vocab_size`, and at least 4,000,000. A vocabulary that the sample cannot fill becomes smaller,
    which an event reports."""
    digits: Literal["whole", "single", "triples"] = "whole"
    """How numbers are divided before merges are learned: `whole` leaves runs of digits together, `single` makes each
    digit a token, `triples` groups up to three, from the left."""
    special_tokens: Annotated[list[SpecialToken], Field(max_length=1000, examples=[["<|user|>", "<|end|>"]])] = []
    """Up to 1,000 texts that become one of the tokens each and are never divided, for example the marks of a chat
    template. They count in `vocab_size`. `<|endoftext|>` is always there."""
    digest: Annotated[str, Field(examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"])] = ""
    """Identity of the base model's tokenizer. The platform sets it when a job with `model.base` is submitted; leave it
    out."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        tokens = [END_OF_TEXT, *self.special_tokens]
        twice = sorted({token for token in tokens if tokens.count(token) > 1})
        if twice:
            yield FieldConflict("special_tokens", f"special_tokens has {twice[0]!r} more than once; leave one out")
        if len(tokens) + BYTE_TOKENS > self.vocab_size:
            message = f"{len(tokens)} special tokens and {BYTE_TOKENS} bytes exceed vocab_size {self.vocab_size}"
            yield FieldConflict("special_tokens", message, ("vocab_size",))

    @property
    def sample_size(self) -> int:
        """Return the characters of the training sample."""
        if self.sample_characters != "auto":
            return self.sample_characters
        return max(MIN_SAMPLE_CHARACTERS, SAMPLE_CHARACTERS_PER_TOKEN * self.vocab_size)

    @property
    def identity(self) -> dict[str, object]:
        """Return what decides the tokens, apart from the text; as before these fields existed where they do not."""
        found: dict[str, object] = {"kind": self.kind, "vocab_size": self.vocab_size, "digest": self.digest}
        if self.kind == "bpe" and self.sample_size != MIN_SAMPLE_CHARACTERS:
            found["sample_characters"] = self.sample_size
        if self.digits != "whole":
            found["digits"] = self.digits
        if self.special_tokens:
            found["special_tokens"] = self.special_tokens
        return found

    def conflicts_with(self, data: DataSpec) -> Iterator[FieldConflict]:
        """Yield a conflict, of the model that has both, if the tokenizer is trained on a source that `data` lacks."""
        try:
            self.trainer_among(data.parts)
        except ValueError as error:
            yield FieldConflict("tokenizer.trained_on", str(error), ("data",))

    def trainer_among(self, parts: list[MixturePart]) -> int:
        """Which of `parts` the tokenizer is trained on. Raises ValueError when it is none of them."""
        names = [part.source for part in parts]
        if self.trained_on is None:
            return 0
        if self.trained_on not in names:
            raise ValueError(f"tokenizer.trained_on {self.trained_on!r} is none of the sources ({', '.join(names)})")
        return names.index(self.trained_on)


class Sequences(Protocol):
    """Data that is read in sequences of a length: that of a training, or of a data report."""

    @property
    def data(self) -> DataSpec:
        """Return the data."""

    @property
    def sequence_length(self) -> int:
        """Return the length of a sequence, in tokens."""


@dataclass(frozen=True)
class ReportSequences:
    """The Sequences that a data report looks at."""

    data: DataSpec
    sequence_length: int


class ReportSpec(SpecModel):
    """A data report (docs/how-to/check-your-data.md): what a model would see of the data, and what is wrong with it."""

    sequence_length: Annotated[SequenceLength, Field(examples=[512])]
    """Length of a training sequence, in tokens: what is longer, and how sequences are filled, is reported for it."""
    base: Annotated[
        Annotated[str, Field(min_length=1, max_length=1000)] | None,
        Field(examples=["model:support-bot@candidate"], exclude_if=lambda value: value is None),
    ] = None
    """Base model that will be trained on the data: its tokenizer and chat template are used, and `tokenizer` must be
    left out. `model:NAME@ALIAS`, `model:NAME`, `model:art_...` or `s3://bucket/prefix`, as in `training.model.base`.
    What it refers to is fixed when the job is submitted."""
    evaluation: Annotated[
        list[Source],
        Field(max_length=16, examples=[["dataset:held-out"]], exclude_if=lambda value: not value),
    ] = []
    """Up to 16 sources of evaluation data that the data must not contain: documents that share a run of 13 words with
    them are a critical finding. JSON lines, of which all texts of a row are compared, or plain text."""


class PrepareSpec(CheckedModel):
    """Data to tokenize, encrypt and store ahead of the jobs that train on it. They find it if their `data` names the
    same sources with the same format, text field and validation fraction, and their `tokenizer` is the same. All cores
    of all nodes of the job share the work, file by file (small files in groups of 256 MiB)."""

    data: Annotated[DataSpec, Field(examples=[{"source": "builtin:python-stdlib"}])]
    """The text to prepare. `packing`, `on_corrupt`, `shuffle_shards` and `cache_bytes` are ignored."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    """How text becomes tokens. Kind `model` is refused: the job that trains the model prepares its data."""
    report: Annotated[
        ReportSpec | None, Field(examples=[{"sequence_length": 512}], exclude_if=lambda value: value is None)
    ] = None
    """Make and store a data report of each data set instead: nothing is prepared, and invalid rows do not end the job.
    `packing` and `long_documents` of `data` apply to it. Takes one node."""

    @property
    def report_sequences(self) -> ReportSequences | None:
        """Return what a report looks at, None if the job prepares data."""
        return None if self.report is None else ReportSequences(self.data, self.report.sequence_length)

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.tokenizer.kind == "model":
            message = "tokenizer.kind `model` comes with a model to train; the job that trains it prepares its data"
            yield FieldConflict("tokenizer.kind", message)
        for form in sorted({part.format for part in self.data.parts} & {*PREFERENCE_FORMATS}):
            if self.report is not None and form == "preference":
                continue
            message = (
                f"data.format {form} is tokenised with the tokenizer of the model that is trained; the job that "
                "trains it prepares its data"
                if self.report is None
                else f"report reads texts, conversations and pairs, not answers with a label (data.format {form}); the "
                "job that trains on them checks each line before its first step"
            )
            yield FieldConflict("data.mixture" if self.data.mixture else "data.format", message)
        if self.report is not None and self.report.base is not None and self.tokenizer != TokenizerSpec():
            message = "report.base comes with its own tokenizer; leave tokenizer out"
            yield FieldConflict("tokenizer", message, ("report.base",))
        yield from self.tokenizer.conflicts_with(self.data)
