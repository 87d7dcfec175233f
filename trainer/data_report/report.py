"""Make the report of the sources of a spec: prepare each in a folder as training does, and look at what is read.

In a first pass the rows are read and checked, and invalid ones are collected; in the second, the documents are
tokenised. Lengths, splits and sequences are those of the prepared data.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.contract.data import DataSpec, MixturePart, Sequences, TokenizerSpec
from trainer.contract.data_report import (
    HISTOGRAM_BOUNDS,
    MAX_PLACES,
    DataReport,
    Lengths,
    Packing,
    PairReport,
    SourceReport,
    SplitReport,
)
from trainer.contract.run import EndClass
from trainer.data.documents import Document, Piece, Place, RawObject, Reading, RowProblem
from trainer.data.encoding import EncodedTexts, WordEncoder
from trainer.data.masks import num_chosen, unmasked
from trainer.data.packing import IGNORED
from trainer.data.pairs import Pair
from trainer.data.prepare import Objects, Preparation, PreparationPlan, UnitCount, check_enough
from trainer.data.shards import SPLITS, TOKENIZER_NAME, DatasetIndex, DocumentLengths
from trainer.data.source import row_counts
from trainer.data.tokenizer import ExistingTokenizer
from trainer.data_report.checks import Batch, Checked, Checks
from trainer.data_report.conversations import Messages
from trainer.data_report.duplicates import Duplicates, Preferences, Prompts
from trainer.data_report.findings import Findings
from trainer.data_report.overlap import EvaluationText
from trainer.data_report.preview import Preview
from trainer.data_report.processes import Pipeline
from trainer.data_report.text import Scripts
from trainer.errors import TrainerError

MAX_ROW_BYTES = 64 * 2**20
_DETAIL_CHARACTERS = 300
BATCH_CHARACTERS = 250_000  # checked at a time: some megabytes of memory in each process


@dataclass(frozen=True)
class ReportOptions:
    """`max_places`: rows named for each kind of finding. `max_row_bytes`: longer lines are a finding, not read."""

    max_places: int = MAX_PLACES
    max_row_bytes: int = MAX_ROW_BYTES
    evaluation: EvaluationText | None = None


class _Rows(Reading):
    """Collects what is wrong with the rows of the first pass."""

    def __init__(self, options: ReportOptions, checks: Pipeline[Batch, Checked]) -> None:
        self.max_row_bytes = options.max_row_bytes
        self.findings = Findings(options.max_places)
        self.scripts, self.duplicates = Scripts(), Duplicates()
        self.prompts, self.preferences = Prompts(), Preferences()
        self.rows = self.read_bytes = 0
        self.is_active = True
        self._checks = checks
        self._batch, self._characters = Batch(), 0
        self._places: deque[Place] = deque()  # of the documents that are not checked yet
        self._messages: Messages | None = None

    def count_bytes(self, raw: RawObject) -> RawObject:
        """Return the object; what is read of it is counted."""

        def counted() -> Iterator[bytes]:
            for block in raw.read():
                self.read_bytes += len(block)
                yield block

        return RawObject(raw.name, counted)

    def on_problem(self, problem: RowProblem) -> None:
        # What is found when a pair is tokenised is about a row that was counted.
        self.rows += self.is_active
        self.findings.add(problem.kind, problem.place, problem.message[:_DETAIL_CHARACTERS])

    def on_conversation(self, place: Place, messages: list[dict[str, Any]]) -> None:
        self._messages = messages

    def on_document(self, document: Document) -> None:
        self.rows += 1
        self._places.append(document.place)
        self._batch.texts.append(str(document))
        self._batch.contents.append(document.answers if isinstance(document, Pair) else self._messages)
        self._messages = None
        self._characters += len(document)
        if self._characters >= BATCH_CHARACTERS:
            self._check()

    def _check(self) -> None:
        batch, self._batch, self._characters = self._batch, Batch(), 0
        for checked in self._checks.put(batch):
            self._add(checked)

    def _add(self, checked: Checked) -> None:
        places = [self._places.popleft() for _ in checked.fingerprints.texts]
        for number, kind, detail in sorted(checked.problems):
            self.findings.add(kind, places[number], detail)
        self.scripts.add(checked.scripts)
        self.duplicates.add(places, checked.fingerprints)
        for number, prompt, conversation in checked.prompts:
            self.prompts.add(places[number], prompt, conversation)
        for number, chosen, rejected in checked.pairs:
            self.preferences.add(places[number], chosen, rejected)

    def finish(self) -> None:
        """Add what is known once all documents are read."""
        self.is_active = False
        self._check()
        for checked in self._checks.finish():
            self._add(checked)
        for copy, original in self.duplicates.exact():
            self.findings.add("exact_duplicate", copy, f"of {original.object}:{original.row}")
        for document, other, similarity in self.duplicates.near():
            self.findings.add("near_duplicate", document, f"{similarity:.0%} like {other.object}:{other.row}")
        for place, other in self.prompts.conflicts():
            self.findings.add("conflicting_answers", place, f"prompt of {other.object}:{other.row}")
        for place, other in self.preferences.contradictions():
            self.findings.add("contradicting_pairs", place, f"opposite of {other.object}:{other.row}")


@dataclass
class _Pairs:
    """Learned tokens of chosen and rejected answers."""

    pairs: int = 0
    chosen: int = 0
    rejected: int = 0
    longer: int = 0

    def add(self, chosen: int, rejected: int) -> None:
        self.pairs, self.longer = self.pairs + 1, self.longer + (chosen > rejected)
        self.chosen, self.rejected = self.chosen + chosen, self.rejected + rejected

    def result(self) -> PairReport:
        of = max(1, self.pairs)
        return PairReport(
            pairs=self.pairs, chosen_mean=self.chosen / of, rejected_mean=self.rejected / of,
            chosen_longer=self.longer / of,
        )  # fmt: skip


@dataclass
class _Tokens:
    """What the second pass sees: the tokens of each document."""

    training: Sequences
    findings: Findings
    is_masked: bool
    preview: Preview = field(default_factory=Preview)
    pairs: _Pairs = field(default_factory=_Pairs)
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
        if isinstance(document, Pair) and targets is not None:
            chosen = num_chosen(tokens)
            self.pairs.add(int(targets[: chosen - 1].sum()), int(targets[chosen:].sum()))
        self.preview.add(document, tokens)


def make_report(
    units: Sequence[Sequence[Objects]],
    tokenizer: TokenizerSpec | ExistingTokenizer,
    training: Sequences,
    folder: Path,
    options: ReportOptions,
) -> DataReport:
    """Report on all sources of `training.data`. `units`: of each source. `folder`: for what is prepared.

    Raises TrainerError if objects cannot be read, and (BAD_SPEC) for answers with a label.
    """
    parts = training.data.parts
    if any(part.format == "unpaired" for part in parts):
        message = (
            "training.data.format unpaired: the data report reads texts, conversations and pairs, not answers with a "
            "label; a run checks each line of them before its first step"
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
    with Pipeline[Batch, Checked](Checks, special_tokens_of(tokenizer), options.evaluation) as checks:
        rows = _Rows(options, checks)
        counted: list[Objects] = [partial(_counted, unit, rows) for unit in units]
        preparation = Preparation(counted, part, tokenizer, folder, reading=rows, has_spool=True)
        counts = [preparation.count(number) for number in range(preparation.num_units)]
        rows.finish()
    tokens = _Tokens(training, rows.findings, part.format in ("chat", "preference"))
    plan, index = _prepare(preparation, part, counts, tokens)
    if index is not None:
        try:
            check_enough(folder, index, part.source, training)
        except TrainerError as error:
            rows.findings.add("too_few_tokens", Place(part.source, 0), str(error))
    splits, lengths, packing = _measure(folder, index, training, tokens)
    return SourceReport(
        source=part.source,
        format=part.format,
        read_bytes=rows.read_bytes,
        rows=rows.rows,
        vocab_size=0 if plan is None else plan.vocab_size,
        splits=splits,
        lengths=lengths,
        packing=packing,
        scripts=rows.scripts.shares(),
        overlap=None if options.evaluation is None else options.evaluation.summary,
        findings=rows.findings.result(rows.rows),
        preview=[]
        if plan is None
        else tokens.preview.result(Tokenizer.from_str(plan.tokenizer), is_masked=tokens.is_masked),
        pairs=tokens.pairs.result() if part.format == "preference" else None,
    )


def _counted(unit: Objects, rows: _Rows) -> Iterator[RawObject]:
    return map(rows.count_bytes, unit())


def _prepare(
    preparation: Preparation, part: MixturePart, counts: Sequence[UnitCount], tokens: _Tokens
) -> tuple[PreparationPlan | None, DatasetIndex | None]:
    """Tokenise the data. Return the plan and the index, None where there are not enough documents."""
    try:
        plan = preparation.plan(counts)
    except TrainerError as error:
        tokens.findings.add("no_documents", Place(part.source, 0), str(error))
        return None, None
    units = [preparation.tokenise(number, plan, tokens.observe, _encode) for number in range(preparation.num_units)]
    return plan, preparation.finish(plan, units)


def _encode(tokenizer: str, has_begins: bool, batches: Iterable[list[str]]) -> Iterator[EncodedTexts]:
    with Pipeline[list[str], EncodedTexts](partial(WordEncoder, has_begins=has_begins), tokenizer) as encoder:
        yield from encoder.map(batches)


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
