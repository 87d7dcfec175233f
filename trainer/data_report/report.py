"""Make the report of the sources of a spec: prepare each in a folder as training does, and look at what is read.

The data is read twice, as in every preparation. In the first pass the rows are checked, and invalid ones are collected;
in the second, the documents are tokenised. Lengths, splits and sequences are those of the prepared data.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.contract.data import PREFERENCE_FORMATS, DataSpec, MixturePart, Sequences, TokenizerSpec
from trainer.contract.data_report import (
    HISTOGRAM_BOUNDS,
    MAX_PLACES,
    DataReport,
    Lengths,
    Packing,
    SourceReport,
    SplitReport,
)
from trainer.contract.run import EndClass
from trainer.data.documents import Document, Piece, Place, RawObject, Reading, RowProblem
from trainer.data.masks import unmasked
from trainer.data.packing import IGNORED
from trainer.data.prepare import Objects, Preparation, PreparationPlan, check_enough
from trainer.data.shards import SPLITS, TOKENIZER_NAME, DatasetIndex, DocumentLengths
from trainer.data.source import row_counts
from trainer.data.tokenizer import ExistingTokenizer
from trainer.data_report.conversations import check_conversation
from trainer.data_report.duplicates import Duplicates, Prompts
from trainer.data_report.findings import Findings
from trainer.data_report.ngrams import word_hashes
from trainer.data_report.overlap import EvaluationText
from trainer.data_report.preview import Preview
from trainer.data_report.secrets import find_secrets
from trainer.data_report.text import Scripts, check_text
from trainer.errors import TrainerError

MAX_ROW_BYTES = 64 * 2**20
_DETAIL_CHARACTERS = 300


@dataclass(frozen=True)
class ReportOptions:
    """`max_places`: rows named for each kind of finding. `max_row_bytes`: longer lines are a finding, not read."""

    max_places: int = MAX_PLACES
    max_row_bytes: int = MAX_ROW_BYTES
    evaluation: EvaluationText | None = None


class _Checks(Reading):
    """Checks each row of the first pass."""

    def __init__(self, options: ReportOptions, special_tokens: Sequence[str]) -> None:
        self.max_row_bytes = options.max_row_bytes
        self.findings = Findings(options.max_places)
        self.scripts, self.duplicates, self.prompts = Scripts(), Duplicates(), Prompts()
        self.rows = self.read_bytes = 0
        self.is_active = True
        self._evaluation, self._special_tokens = options.evaluation, special_tokens
        self._messages: list[dict[str, Any]] | None = None

    def count_bytes(self, raw: RawObject) -> RawObject:
        """Return the object; what is read of it in the first pass is counted."""

        def counted() -> Iterator[bytes]:
            for block in raw.read():
                self.read_bytes += len(block) if self.is_active else 0
                yield block

        return RawObject(raw.name, counted)

    def on_problem(self, problem: RowProblem) -> None:
        if self.is_active:
            self.rows += 1
            # The content of the row is not part of these messages, apart from names of fields.
            self.findings.add(problem.kind, problem.place, problem.message[:_DETAIL_CHARACTERS])

    def on_conversation(self, place: Place, messages: list[dict[str, Any]]) -> None:
        self._messages = messages

    def on_document(self, document: Document) -> None:
        if not self.is_active:
            return
        self.rows += 1
        place, text = document.place, str(document)
        messages, self._messages = self._messages, None
        if messages is not None:
            self._check_conversation(place, messages)
            # Without what the chat template adds, such as its special tokens.
            text = "\n".join(_texts_of(messages))
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        self.scripts.add(text, data)
        for kind, detail in check_text(text, data, self._special_tokens):
            self.findings.add(kind, place, detail)
        for kind, detail in _first_of_kinds(text):
            self.findings.add(kind, place, detail)
        words = word_hashes(data)
        self.duplicates.add(place, str(document), words)
        if self._evaluation is not None:
            shared, total = self._evaluation.shared(words)
            if shared:
                self.findings.add("evaluation_overlap", place, f"{shared} of {total} runs of words")

    def _check_conversation(self, place: Place, messages: list[dict[str, Any]]) -> None:
        for kind, detail in check_conversation(messages):
            self.findings.add(kind, place, detail)
        first = next(number for number, message in enumerate(messages) if message["role"] == "assistant")
        if any((message.get("content") or "").strip() for message in messages[:first]):
            self.prompts.add(place, json.dumps(messages[:first]), json.dumps(messages))

    def finish(self) -> None:
        """Add what is known once all documents are read."""
        for copy, original in self.duplicates.exact():
            self.findings.add("exact_duplicate", copy, f"of {original.object}:{original.row}")
        for document, other, similarity in self.duplicates.near():
            self.findings.add("near_duplicate", document, f"{similarity:.0%} like {other.object}:{other.row}")
        for place, other in self.prompts.conflicts():
            self.findings.add("conflicting_answers", place, f"prompt of {other.object}:{other.row}")


def _texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the content of each message, and its calls as JSON."""
    for message in messages:
        yield message.get("content") or ""
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"], ensure_ascii=False)


def _first_of_kinds(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, what may be shown) of the secrets of a text, each kind once."""
    seen: set[str] = set()
    for kind, _, _, shown in find_secrets(text):
        if kind not in seen:
            seen.add(kind)
            yield kind, shown


@dataclass
class _Tokens:
    """What the second pass sees: the tokens of each document."""

    training: Sequences
    findings: Findings
    is_masked: bool
    preview: Preview = field(default_factory=Preview)
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    learned: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))

    def observe(self, split: str, document: str, tokens: NDArray[np.uint32]) -> None:
        """Look at a document."""
        data, length = self.training.data, self.training.sequence_length
        self.documents[split] += 1
        # The first token of a conversation is no target: nothing comes before it.
        targets = unmasked(tokens, IGNORED)[1][1:] != IGNORED if self.is_masked else None
        self.learned[split] += len(tokens) if targets is None else int(targets.sum())
        if not isinstance(document, Document):
            return  # a part of the only document
        if data.packing == "documents" and len(tokens) > length and not isinstance(document, Piece):
            self.findings.add("longer_than_sequence", document.place, f"{len(tokens):,} tokens")
        if targets is not None:
            taken = targets[: length - 1] if data.long_documents == "truncate" else targets
            if not taken.any():
                self.findings.add("nothing_learned", document.place, f"{len(tokens):,} tokens")
        self.preview.add(document, tokens)


def make_report(
    units: Sequence[Sequence[Objects]],
    tokenizer: TokenizerSpec | ExistingTokenizer,
    training: Sequences,
    folder: Path,
    options: ReportOptions,
) -> DataReport:
    """Report on all sources of `training.data`. `units`: of each source. `folder`: for what is prepared.

    Raises TrainerError if objects cannot be read, and (BAD_SPEC) for preference data.
    """
    parts = training.data.parts
    for form in sorted({part.format for part in parts} & {*PREFERENCE_FORMATS}):
        message = (
            f"training.data.format {form}: the data report reads texts and conversations, not preference data; "
            "a run checks each line of it before its first step"
        )
        raise TrainerError(EndClass.BAD_SPEC, message)
    trainer = 0 if isinstance(tokenizer, ExistingTokenizer) else tokenizer.trainer_among(parts)
    found: dict[int, SourceReport] = {}
    # The part that trains the tokenizer comes first.
    for number in sorted(range(len(parts)), key=lambda number: number != trainer):
        own, place = tokenizer, folder / str(number)
        trained = folder / str(trainer) / TOKENIZER_NAME
        if number != trainer and isinstance(tokenizer, TokenizerSpec) and trained.exists():
            own = ExistingTokenizer.from_file(trained)
        found[number] = report_source(units[number], parts[number], own, training, place, options)
    return DataReport(
        sequence_length=training.sequence_length,
        packing=training.data.packing,
        long_documents=training.data.long_documents,
        sources=[found[number] for number in range(len(parts))],
    )


def report_source(
    units: Sequence[Objects],
    part: MixturePart,
    tokenizer: TokenizerSpec | ExistingTokenizer,
    training: Sequences,
    folder: Path,
    options: ReportOptions,
) -> SourceReport:
    """Report on one source, which is prepared in `folder`."""
    checks = _Checks(options, special_tokens_of(tokenizer))
    counted: list[Objects] = [partial(_counted, unit, checks) for unit in units]
    preparation = Preparation(counted, part, tokenizer, folder, reading=checks)
    tokens = _Tokens(training, checks.findings, part.format == "chat")
    plan, index = _prepare(preparation, part, checks, tokens)
    if index is not None:
        try:
            check_enough(folder, index, part.source, training)
        except TrainerError as error:
            checks.findings.add("too_few_tokens", Place(part.source, 0), str(error))
    splits, lengths, packing = _measure(folder, index, training, tokens)
    return SourceReport(
        source=part.source,
        format=part.format,
        read_bytes=checks.read_bytes,
        rows=checks.rows,
        vocab_size=0 if plan is None else plan.vocab_size,
        splits=splits,
        lengths=lengths,
        packing=packing,
        scripts=checks.scripts.shares(),
        overlap=None if options.evaluation is None else options.evaluation.summary,
        findings=checks.findings.result(checks.rows),
        preview=[]
        if plan is None
        else tokens.preview.result(Tokenizer.from_str(plan.tokenizer), is_masked=tokens.is_masked),
    )


def _counted(unit: Objects, checks: _Checks) -> Iterator[RawObject]:
    return map(checks.count_bytes, unit())


def _prepare(
    preparation: Preparation, part: MixturePart, checks: _Checks, tokens: _Tokens
) -> tuple[PreparationPlan | None, DatasetIndex | None]:
    """Prepare the data. Return the plan and the index, None where there are not enough documents."""
    counts = [preparation.count(number) for number in range(preparation.num_units)]
    checks.is_active = False
    checks.finish()
    try:
        plan = preparation.plan(counts)
    except TrainerError as error:
        checks.findings.add("no_documents", Place(part.source, 0), str(error))
        return None, None
    units = [preparation.tokenise(number, plan, tokens.observe) for number in range(preparation.num_units)]
    return plan, preparation.finish(plan, units)


def special_tokens_of(tokenizer: TokenizerSpec | ExistingTokenizer) -> list[str]:
    """Return the texts that become special tokens, without those that the spec asks for."""
    if isinstance(tokenizer, TokenizerSpec):
        return ["<|endoftext|>"]
    added = Tokenizer.from_file(str(tokenizer.file)).get_added_tokens_decoder().values()
    return [token.content for token in added if token.special]


def _measure(
    folder: Path, index: DatasetIndex | None, training: Sequences, tokens: _Tokens
) -> tuple[dict[str, SplitReport], Lengths, Packing]:
    length, data = training.sequence_length, training.data
    bounds = [max(1, round(share * length)) for share in HISTOGRAM_BOUNDS]
    counts = np.zeros(len(bounds) + 1, dtype=np.int64)
    longest = total = documents = cut = lost = alone = 0
    for lengths in [] if index is None or not index.shards["train"] else DocumentLengths(folder, index, "train"):
        counts += np.bincount(np.searchsorted(bounds, lengths), minlength=len(counts))
        longest, total = max(longest, int(lengths.max())), total + int(lengths.sum())
        documents, cut = documents + len(lengths), cut + int((lengths > length).sum())
        lost += _lost_tokens(lengths, length, data)
        alone += _pieces(lengths, length, data)
    rows = (
        {} if index is None else {packing: _rows(folder, index, training, packing) for packing in ("none", "documents")}
    )
    packed = rows.get("documents", 0)
    splits = {
        split: SplitReport(
            documents=tokens.documents[split],
            tokens=0 if index is None else sum(shard.tokens for shard in index.shards[split]),
            learned_tokens=tokens.learned[split],
            text_bytes=0 if index is None else index.text_bytes[split],
        )
        for split in SPLITS
    }
    return (
        splits,
        Lengths(
            bounds=bounds, counts=counts.tolist(), longest=longest, mean=total / max(1, documents),
            cut_documents=cut, lost_tokens=lost,
        ),
        Packing(
            none=rows.get("none", 0), documents=packed, alone=alone,
            padding=1 - (total - lost) / (packed * length) if packed else 0.0,
        ),
    )  # fmt: skip


def _lost_tokens(lengths: NDArray[np.int64], length: int, data: DataSpec) -> int:
    if data.packing != "documents" or data.long_documents == "cut":
        return 0
    longer = lengths[lengths > length]
    return int(longer.sum()) - (len(longer) * length if data.long_documents == "truncate" else 0)


def _pieces(lengths: NDArray[np.int64], length: int, data: DataSpec) -> int:
    """Return how many sequences documents fill if each has its own."""
    if data.long_documents == "cut":
        return int((-(-lengths // length)).sum())
    return len(lengths) if data.long_documents == "truncate" else int((lengths <= length).sum())


def _rows(folder: Path, index: DatasetIndex, training: Sequences, packing: str) -> int:
    """Return the sequences of the training split with a way of packing."""
    data = training.data.model_copy(update={"packing": packing})
    return sum(row_counts(folder, index, "train", data, training.sequence_length)) if index.shards["train"] else 0
