"""`python -m trainer data-report job.yaml --data FILES`: what a model would see of the data, without training."""

import argparse
import sys
import tempfile
from pathlib import Path

from trainer.contract.data_findings import SEVERITIES, Severity
from trainer.contract.data_report import DataReport, format_report
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.run import EXIT_STATUS, DatasetSource, EndClass
from trainer.contract.training import TrainingSpec
from trainer.data.documents import RawObject
from trainer.data.prepare import UNIT_BYTES
from trainer.data.raw_objects import files_of_part, read_units
from trainer.data.tokenizer import ExistingTokenizer
from trainer.data_report.overlap import EvaluationText
from trainer.data_report.report import MAX_ROW_BYTES, ReportOptions, make_report
from trainer.errors import TrainerError
from trainer.standalone.job_file import read_job
from trainer.storage.folder import FolderStorage


def data_report_command(arguments: list[str]) -> int:
    """Print or write the report. Return the exit status: 0, or that of `data_error` with --fail-on."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer data-report",
        description="Report what a model would see of the data of a job file, and what is wrong with it.",
    )
    parser.add_argument("job", type=Path, help="job spec (YAML); its field training applies")
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[], help="files to report on; NAME.* for each source of a mixture"
    )
    parser.add_argument("--model", type=Path, help="folder of a model in Hugging Face's layout, with its tokenizer")
    parser.add_argument(
        "--evaluation", type=Path, nargs="+", default=[], help="files of evaluation data that the data must not contain"
    )
    parser.add_argument(
        "--max-row-bytes", type=int, default=MAX_ROW_BYTES, metavar="BYTES",
        help="longer lines are a finding and are not read into memory (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--output", type=Path, help="also write the report as JSON to this file")
    parser.add_argument(
        "--fail-on", choices=SEVERITIES, help="exit with an error if there is a finding of this severity or a worse one"
    )
    chosen = parser.parse_args(arguments)
    if chosen.max_row_bytes < 1:
        parser.error(f"--max-row-bytes {chosen.max_row_bytes} must be 1 or more")
    if chosen.output is not None and not chosen.output.absolute().parent.is_dir():
        parser.error(f"--output {chosen.output}: there is no folder {chosen.output.absolute().parent}; create it")
    try:
        _, settings = read_job(chosen.job, chosen.model, allow_multi_node=True)
        options = ReportOptions(
            max_row_bytes=chosen.max_row_bytes,
            evaluation=EvaluationText(map(RawObject.file, chosen.evaluation)) if chosen.evaluation else None,
        )
        report = report_on_files(settings.training, [path.absolute() for path in chosen.data], options)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STATUS[error.end_class]
    if chosen.output is not None:
        chosen.output.write_text(report.model_dump_json(indent=2) + "\n")
    text = report.model_dump_json(indent=2) if chosen.json else "\n".join(format_report(report))
    sys.stdout.write(text + "\n")
    return EXIT_STATUS[EndClass.DATA_ERROR if _fails(report, chosen.fail_on) else EndClass.COMPLETED]


def report_on_files(training: TrainingSpec, files: list[Path], options: ReportOptions) -> DataReport:
    """Report on files, or on the builtin data set if there are none.

    Raises TrainerError (BAD_SPEC, DATA_ERROR).
    """
    parts, base = training.data.parts, training.model.base
    tokenizer = training.tokenizer
    try:
        used = ExistingTokenizer.from_model(Path(base), tokenizer.vocab_size) if base is not None else tokenizer
    except ValueError as error:
        raise TrainerError(EndClass.BAD_SPEC, str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        storage, encryptor = FolderStorage(Path(folder) / "store"), Encryptor(new_keyset())
        units = [
            read_units(
                part, DatasetSource(dataset_id="", name=part.source, origin="builtin"), storage, encryptor,
                files_of_part(parts, number, files), UNIT_BYTES,
            )
            for number, part in enumerate(parts)
        ]  # fmt: skip
        return make_report(units, used, training, Path(folder), options)


def _fails(report: DataReport, limit: Severity | None) -> bool:
    return limit is not None and report.worst is not None and SEVERITIES.index(report.worst) <= SEVERITIES.index(limit)
