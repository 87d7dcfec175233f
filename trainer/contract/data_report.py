"""The data report: what a model would see of a data set, and what is wrong with it, before a GPU is used."""

import hashlib
from itertools import groupby
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import WireModel
from trainer.contract.data_findings import SEVERITIES, Severity
from trainer.contract.preflight import format_bytes

MAX_PLACES = 5
MAX_REPORT_BYTES = 4 * 2**20
"""Of a report as JSON. The places, the tokens of previews and their number are bounded, so reports are far smaller."""
REPORT_NAME = "report.json"
HISTOGRAM_BOUNDS = (0.125, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0)
"""Upper bounds of the histogram of lengths, as shares of the sequence length; above the last is one more class."""


class FoundAt(WireModel):
    """A place of a finding. `row`: line or row from 1; 0 if it is not a row. `detail`: what was found there, without
    secrets."""

    object: str
    row: int
    detail: str = ""


class Finding(WireModel):
    """Rows with the same problem. `share`: of all rows that are not blank. `places`: the first ones."""

    kind: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")]
    severity: Severity
    title: str
    count: int
    share: float
    places: list[FoundAt]
    remedy: str


class SplitReport(WireModel):
    """One split. `learned_tokens`: those that count in the loss. `text_bytes`: of its text as UTF-8."""

    documents: int
    tokens: int
    learned_tokens: int
    text_bytes: int


class Lengths(WireModel):
    """Tokens of the documents of the training split. `counts`: documents by length, up to each of `bounds` (tokens),
    and above the last. `cut_documents`: longer than a sequence; `lost_tokens`: tokens of theirs that are not trained on
    (with long_documents `truncate` or `drop`)."""

    bounds: list[int]
    counts: list[int]
    longest: int
    mean: float
    cut_documents: int
    lost_tokens: int


class Packing(WireModel):
    """What becomes of the training split with each way of packing. `none`: sequences of the concatenated stream.
    `documents`: sequences filled with complete documents. `alone`: sequences if each held a single document or piece.
    `padding`: share of the packed sequences that is padding. Conversations need `documents`."""

    none: int
    documents: int
    alone: int
    padding: float


class Overlap(WireModel):
    """The comparison with evaluation data. `ngram`: words that must agree; `rows`: of the evaluation data;
    `too_short`: rows with fewer words, which are not compared."""

    ngram: int
    rows: int
    too_short: int


class PreviewToken(WireModel):
    """`text`: of one token, as decoded alone; empty where the report hides it. `learned`: it counts in the loss."""

    text: str
    learned: bool
    hidden: bool = False


class PreviewDocument(WireModel):
    """A document as the model sees it. `tokens`: the first ones; `omitted`: how many follow. `answer`: of a pair."""

    object: str
    row: int
    tokens: list[PreviewToken]
    omitted: int
    answer: Annotated[Literal["chosen", "rejected"] | None, Field(exclude_if=lambda value: value is None)] = None


class PairReport(WireModel):
    """The answers of pairs, of both splits. `pairs`: how many; `chosen_mean` and `rejected_mean`: learned tokens of an
    answer; `chosen_longer`: share of the pairs of which the chosen answer has more. A share far from a half can teach
    the length instead of the quality."""

    pairs: int
    chosen_mean: float
    rejected_mean: float
    chosen_longer: float


class SourceReport(WireModel):
    """The report of one source. `rows`: those that are not blank, valid or not. `vocab_size`: of the tokenizer.
    `scripts`: share of the letters by the first word of their Unicode names, which approximates scripts and says
    nothing of languages."""

    source: str
    format: str
    read_bytes: int
    rows: int
    vocab_size: int
    splits: dict[str, SplitReport]
    lengths: Lengths
    packing: Packing
    scripts: dict[str, float]
    overlap: Overlap | None
    findings: list[Finding]
    preview: list[PreviewDocument]
    pairs: Annotated[PairReport | None, Field(exclude_if=lambda value: value is None)] = None


class DataReport(WireModel):
    """The report of all sources of a spec. Equal data and an equal spec give an equal report."""

    version: int = 1
    sequence_length: int
    packing: str
    long_documents: str
    sources: list[SourceReport]

    def count(self, severity: Severity) -> int:
        """Return the number of kinds of findings with this severity, over all sources."""
        return sum(finding.severity == severity for source in self.sources for finding in source.findings)

    def kinds(self, severity: Severity) -> list[str]:
        """Return the kinds of findings with this severity, over all sources, each once."""
        found = [each.kind for source in self.sources for each in source.findings if each.severity == severity]
        return list(dict.fromkeys(found))

    @property
    def worst(self) -> Severity | None:
        """Return the worst severity of all findings, None without any."""
        return next((severity for severity in SEVERITIES if self.count(severity)), None)

    @property
    def content(self) -> bytes:
        """Return the report as JSON."""
        return self.model_dump_json().encode()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of `content`."""
        return hashlib.sha256(self.content).hexdigest()


def format_report(report: DataReport) -> list[str]:
    """Return the report as lines for people."""
    lines = []
    for source in report.sources:
        lines += [*_summary(report, source), "", *_findings(source), "", *map(_preview, source.preview), ""]
    kinds = ", ".join(f"{report.count(severity)} {severity}" for severity in SEVERITIES)
    return [*map(_printable, lines), f"kinds of findings: {kinds}", f"digest {report.digest}"]


def _summary(report: DataReport, source: SourceReport) -> list[str]:
    packing, lengths = source.packing, source.lengths
    rows: list[tuple[str, str]] = [
        ("format", source.format),
        ("read", f"{format_bytes(source.read_bytes)}, {source.rows:,} rows"),
        ("vocabulary", f"{source.vocab_size:,}"),
    ]
    for name, split in source.splits.items():
        learned = f", {split.learned_tokens / split.tokens:.1%} learned" if split.tokens else ""
        rows.append((name, f"{split.documents:,} documents, {split.tokens:,} tokens{learned}"))
    bounds = ["<= " + f"{bound:,}" for bound in lengths.bounds] + [f"> {lengths.bounds[-1]:,}"]
    rows += [
        ("lengths", f"mean {lengths.mean:,.0f}, longest {lengths.longest:,} tokens"),
        *((f"  {bound}", f"{count:,}") for bound, count in zip(bounds, lengths.counts, strict=True)),
        ("longer than a sequence", f"{lengths.cut_documents:,} documents; {lengths.lost_tokens:,} tokens not learned"),
        *([] if source.format in ("chat", "preference") else [("packing none", f"{packing.none:,} sequences")]),
        ("packing documents", f"{packing.documents:,} sequences, {packing.padding:.1%} padding"),
        ("one document each", f"{packing.alone:,} sequences"),
        ("letters", ", ".join(f"{name} {share:.1%}" for name, share in source.scripts.items()) or "none"),
    ]  # fmt: skip
    if source.pairs is not None:
        pairs = source.pairs
        means = f"chosen {pairs.chosen_mean:,.1f}, rejected {pairs.rejected_mean:,.1f} tokens"
        rows.append(("answers", f"mean {means}; the chosen one is longer in {pairs.chosen_longer:.1%}"))
    if source.overlap is not None:
        overlap = source.overlap
        rows.append(("evaluation data", f"{overlap.rows:,} rows, {overlap.too_short:,} of them too short to compare"))
    title = f"{source.source} (sequences of {report.sequence_length:,}, packing {report.packing})"
    return [title, *(f"  {name:24}{value}" for name, value in rows)]


def _preview(document: PreviewDocument) -> str:
    """Return the text of a document with what is learned between « and », and what is hidden as █."""
    pieces = []
    for is_learned, tokens in groupby(document.tokens, key=lambda token: token.learned):
        text = "".join("█" if token.hidden else token.text for token in tokens)
        pieces.append(f"«{text}»" if is_learned else text)
    more = f" ... and {document.omitted:,} tokens" if document.omitted else ""
    answer = f" ({document.answer})" if document.answer else ""
    return f"preview of {document.object}:{document.row}{answer}: {''.join(pieces)}{more}"


def _printable(line: str) -> str:
    """Return a line with escapes for what a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _findings(source: SourceReport) -> list[str]:
    if not source.findings:
        return ["no findings"]
    lines = [f"{'severity':10}{'rows':>10}{'share':>9}  finding"]
    for finding in source.findings:
        lines.append(f"{finding.severity:10}{finding.count:>10,}{finding.share:>9.2%}  {finding.kind}: {finding.title}")
        places = [f"{each.object}:{each.row}{f' ({each.detail})' if each.detail else ''}" for each in finding.places]
        lines += [f"{'':31}{', '.join(places)}", f"{'':31}{finding.remedy}"]
    return lines
