"""Make the data reports of a job on this node, and store each encrypted with the key of its data set."""

import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trainer.client.platform import Platform
from trainer.contract.data import PrepareSpec, ReportSequences
from trainer.contract.data_report import REPORT_NAME, DataReport
from trainer.contract.encryption import Encryptor, authenticate
from trainer.contract.manifest import DataReportManifest
from trainer.contract.run import DataKeys, RunConfig
from trainer.data.prepare import UNIT_BYTES
from trainer.data.raw_objects import read_units, until_stopped
from trainer.data_report.report import ReportOptions, make_report
from trainer.reporting.sinks.sink_queue import ReportEvent
from trainer.storage.base import Storage
from trainer.storage.encrypted import put_encrypted


def report_on_data(
    run: RunConfig,
    keys: DataKeys,
    storage: Storage,
    platform: Platform,
    work: Path,
    is_stopping: Callable[[], bool],
    report_event: ReportEvent,
) -> None:
    """Make, store and register the report of each data set of a job with `prepare.report`.

    `work`: folder in which a temporary one is made for the prepared data. Raises TrainerError, STOPPED among others.
    """
    begin = time.monotonic()
    reports = make_reports(run, keys, storage, work, is_stopping)
    report_event("phase.finished", phase="data", seconds=time.monotonic() - begin)
    begin = time.monotonic()
    for dataset_id, report in reports.items():
        store_report(run, keys, storage, platform, dataset_id, report)
    report_event("phase.finished", phase="upload", seconds=time.monotonic() - begin)


def make_reports(
    run: RunConfig, keys: DataKeys, storage: Storage, work: Path, is_stopping: Callable[[], bool]
) -> dict[str, DataReport]:
    """Return the report of each data set, by its id."""
    prepare = run.prepare
    assert prepare is not None, "only a job with `prepare` makes reports"
    sequences = prepare.report_sequences
    assert sequences is not None, "the caller has looked"
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work, prefix="data-report-") as folder:
        report = _report(run, prepare, sequences, keys, storage, Path(folder), is_stopping)
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
    return make_report(units, prepare.tokenizer, sequences, folder, ReportOptions())


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
