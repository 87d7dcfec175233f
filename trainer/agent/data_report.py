"""Make the data reports of a job on this node, and store each encrypted with the key of its data set."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from trainer.client.platform import Platform
from trainer.contract.data import MixturePart, PrepareSpec, ReportSequences, TokenizerSpec
from trainer.contract.data_report import REPORT_NAME, DataReport
from trainer.contract.encryption import Encryptor, authenticate
from trainer.contract.hugging_face import CONFIG_NAME, text_config
from trainer.contract.manifest import DataReportManifest
from trainer.contract.run import DataKeys, EndClass, RunConfig
from trainer.data.documents import RawObject
from trainer.data.prepare import UNIT_BYTES
from trainer.data.raw_objects import read_units, until_stopped
from trainer.data.tokenizer import ExistingTokenizer
from trainer.data_report.overlap import EvaluationText
from trainer.data_report.report import ReportOptions, make_report
from trainer.errors import TrainerError
from trainer.reporting.sinks.sink_queue import ReportEvent
from trainer.storage.base import Storage
from trainer.storage.encrypted import put_encrypted


def report_on_data(
    run: RunConfig,
    keys: DataKeys,
    storage: Storage,
    platform: Platform,
    work: Path,
    base: Path | None,
    is_stopping: Callable[[], bool],
    report_event: ReportEvent,
) -> None:
    """Make, store and register the report of each data set of a job with `prepare.report`.

    `work`: folder in which a temporary one is made for the prepared data; `base`: of the base model.

    Raises TrainerError, STOPPED among others.
    """
    begin = time.monotonic()
    reports = make_reports(run, keys, storage, work, base, is_stopping)
    report_event("phase.finished", phase="data", seconds=time.monotonic() - begin)
    begin = time.monotonic()
    for dataset_id, report in reports.items():
        store_report(run, keys, storage, platform, dataset_id, report)
    report_event("phase.finished", phase="upload", seconds=time.monotonic() - begin)


def make_reports(
    run: RunConfig, keys: DataKeys, storage: Storage, work: Path, base: Path | None, is_stopping: Callable[[], bool]
) -> dict[str, DataReport]:
    """Return the report of each data set, by its id."""
    prepare = run.prepare
    assert prepare is not None, "only a job with `prepare` makes reports"
    sequences = prepare.report_sequences
    assert sequences is not None, "the caller has looked"
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work, prefix="data-report-") as folder:
        tokenizer = prepare.tokenizer if base is None else tokenizer_of(base)
        report = _report(run, prepare, sequences, tokenizer, keys, storage, Path(folder), is_stopping)
    found: dict[str, DataReport] = {}
    for source, of_source in zip(run.datasets, report.sources, strict=True):
        known = found.get(source.dataset_id)
        sources = [*known.sources, of_source] if known else [of_source]
        found[source.dataset_id] = report.model_copy(update={"sources": sources})
    return found


def _report(
    run: RunConfig,
    prepare: PrepareSpec,
    sequences: ReportSequences,
    tokenizer: TokenizerSpec | ExistingTokenizer,
    keys: DataKeys,
    storage: Storage,
    folder: Path,
    is_stopping: Callable[[], bool],
) -> DataReport:
    units = []
    for part, source in zip(prepare.data.parts, run.datasets, strict=True):
        encryptor = Encryptor(keys.of_dataset(source.dataset_id))
        read = read_units(part, source, storage, encryptor, [], UNIT_BYTES)
        units.append([until_stopped(unit, is_stopping) for unit in read])
    evaluation = None
    if run.compared:
        evaluation = EvaluationText(_compared_objects(run, keys, storage, is_stopping))
    return make_report(units, tokenizer, sequences, folder, ReportOptions(evaluation=evaluation))


def _compared_objects(
    run: RunConfig, keys: DataKeys, storage: Storage, is_stopping: Callable[[], bool]
) -> Iterator[RawObject]:
    """Yield the files of the evaluation data."""
    assert run.prepare is not None and run.prepare.report is not None, "the job makes a report"
    for name, source in zip(run.prepare.report.evaluation, run.compared, strict=True):
        encryptor = Encryptor(keys.of_dataset(source.dataset_id))
        for unit in read_units(MixturePart(source=name), source, storage, encryptor, [], UNIT_BYTES):
            yield from until_stopped(unit, is_stopping)()


def tokenizer_of(base: Path) -> ExistingTokenizer:
    """Return the tokenizer of a model. Raises TrainerError (BAD_SPEC) if it does not fit the model."""
    try:
        config = text_config(json.loads((base / CONFIG_NAME).read_text()))
        return ExistingTokenizer.from_model(base, config["vocab_size"])
    except ValueError as error:
        raise TrainerError(EndClass.BAD_SPEC, str(error)) from error


def store_report(
    run: RunConfig, keys: DataKeys, storage: Storage, platform: Platform, dataset_id: str, report: DataReport
) -> None:
    """Encrypt, store and register the report of a data set. Raises TrainerError."""
    encryptor = Encryptor(keys.of_dataset(dataset_id))
    prefix = f"{run.prefix}data-report/{run.attempt_number}/{dataset_id}/"
    manifest = DataReportManifest(
        job_id=run.job_id,
        attempt_id=run.attempt_id,
        dataset_id=dataset_id,
        digest=report.digest,
        created_at=datetime.now(UTC),
        files=[put_encrypted(storage, encryptor, prefix, REPORT_NAME, report.content)],
    )
    platform.register_report(authenticate(manifest, encryptor))
