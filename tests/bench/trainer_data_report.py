"""The data report on a corpus with planted defects: precision and recall by kind, and its rate on a large corpus.

`python -m tests.bench.trainer_data_report [--each N] [--clean N] [--megabytes N]`
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench import defects
from tests.bench.defects import Planted, score, write_corpus
from trainer.contract.data import DataSpec
from trainer.contract.data_report import SourceReport
from trainer.contract.training import TrainingSpec
from trainer.data.documents import RawObject
from trainer.data_report.overlap import EvaluationText
from trainer.data_report.report import ReportOptions
from trainer.standalone.data_report import report_on_files

FORMS = {"text": "jsonl", "chat": "chat", "pairs": "preference"}
"""Form of a corpus -> training.data.format."""
EVERYTHING = 10**9


def report_on(planted: Planted, form: str) -> SourceReport:
    """Return the report of a planted corpus, with every place."""
    evaluation = EvaluationText([RawObject.file(planted.evaluation)]) if form == "text" else None
    options = ReportOptions(EVERYTHING, defects.MAX_ROW_BYTES, evaluation)
    return report_on_files(training_of(form), [planted.path], options).sources[0]


def training_of(form: str, vocab_size: int = 400) -> TrainingSpec:
    """Return a spec with a corpus of this form. Pairs are trained on with a model only, which the report needs not."""
    long_documents = "drop" if form == "pairs" else "truncate"
    data = {
        "source": "dataset:planted",
        "format": FORMS[form],
        "packing": "documents",
        "long_documents": long_documents,
    }
    text: dict[str, str] = {**data, "format": "jsonl"}
    spec = TrainingSpec.model_validate({
        "model": {"preset": "llama-1m"}, "data": text, "steps": 1, "tokens_per_step": defects.SEQUENCE_LENGTH,
        "tokenizer": {"vocab_size": vocab_size, "sample_characters": 50_000},
        "sequence_length": defects.SEQUENCE_LENGTH, "schedule": {"warmup_steps": 0},
    })  # fmt: skip
    return spec.model_copy(update={"data": DataSpec.model_validate(data)})


def found_rows(report: SourceReport) -> dict[int, set[str]]:
    """Return the kinds of findings of each row."""
    rows: dict[int, set[str]] = {}
    for finding in report.findings:
        for place in finding.places:
            rows.setdefault(place.row, set()).add(finding.kind)
    return rows


def measure_quality(form: str, each: int, clean: int) -> dict[str, Any]:
    """Print precision and recall by kind. Return the kinds for which one of them is below 1."""
    below = {}
    with tempfile.TemporaryDirectory() as folder:
        planted = write_corpus(Path(folder), form, each, clean)
        found = found_rows(report_on(planted, form))
    for kind, count, precision, recall in score(planted, found):
        print(f"| {form} | {kind} | {count} | {precision:.3f} | {recall:.3f} |")
        if min(precision, recall) < 1:
            below[kind] = {"precision": precision, "recall": recall}
    return {"rows": planted.rows, "defects": len(set(planted.names.values())), "below_1": below}


def measure_rate(form: str, megabytes: int) -> dict[str, float]:
    """Measure the report on a corpus of about this size, with each defect once."""
    with tempfile.TemporaryDirectory() as folder:
        per_row = 450 if form == "text" else 900
        planted = write_corpus(Path(folder), form, 1, megabytes * 1_000_000 // per_row)
        size = planted.path.stat().st_size / 1e6
        begin, cpu, load = time.monotonic(), cpu_seconds(), os.getloadavg()[0]
        report_on_files(training_of(form, 8192), [planted.path], ReportOptions())
        seconds, cpu = time.monotonic() - begin, cpu_seconds() - cpu
    return {
        "megabytes": size,
        "megabytes_per_second": size / seconds,
        "megabytes_per_cpu_second": size / cpu,
        "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Measure. Print a table and, as the last line, JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="rows of each kind of defect")
    parser.add_argument("--clean", type=int, default=2000, help="clean rows among them")
    parser.add_argument("--megabytes", type=int, default=0, help="measure the rate on so much data instead")
    chosen = parser.parse_args()
    if chosen.megabytes:
        print(json.dumps({form: measure_rate(form, chosen.megabytes) for form in FORMS}))
        return
    print("| data | finding | rows | precision | recall |\n|---|---|---|---|---|")
    print(json.dumps({form: measure_quality(form, chosen.each, chosen.clean) for form in FORMS}))


if __name__ == "__main__":
    main()
