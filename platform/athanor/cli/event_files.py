"""tensorboard: the stored metrics of jobs as event files on this machine."""

import importlib.util
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, JobIds, connect, find_job
from athanor.cli.render import console, print_json

POINTS = 5000  # of a curve; longer ones keep the lowest and the highest value of each stretch


@reports_errors
def tensorboard(
    jobs: JobIds,
    output: Annotated[Path, typer.Option("--output", "-o", help="Output folder; each job gets a subfolder.")] = Path(
        "tensorboard"
    ),
    as_json: AsJson = False,
) -> None:
    """Write the metrics of jobs as TensorBoard event files. A second run replaces them with the metrics up to then."""
    if importlib.util.find_spec("tensorboard") is None:
        raise CliError(ExitCode.USAGE, "this needs the package tensorboard: pip install 'athanor[tensorboard]'")
    client = connect()
    written = {}
    for job_id in [find_job(client, text) for text in jobs]:
        job = client.get(f"/jobs/{job_id}")
        series = client.get(f"/jobs/{job_id}/metrics", points=POINTS)["series"]
        folder = output / re.sub(r"[^\w.-]+", "-", f"{job['name']}-{job_id[-6:].lower()}")
        shutil.rmtree(folder, ignore_errors=True)
        _write(folder, series)
        written[job_id] = str(folder)
        if not as_json:
            console.print(f"{folder}: {len(series)} curves", markup=False)
    if as_json:
        print_json({"folders": written})
    else:
        console.print(f"look at them with: tensorboard --logdir {output}", markup=False)


def _write(folder: Path, series: dict[str, Any]) -> None:
    """Write one run's curves; wall times are those of the steps."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - an extra
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415 - an extra

    writer = EventFileWriter(str(folder))
    for name, curve in series.items():
        for step, time, value in zip(curve["steps"], curve["times"], curve["values"], strict=True):
            if value is not None:
                at = datetime.fromisoformat(time).timestamp()
                summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
                writer.add_event(Event(step=step, wall_time=at, summary=summary))
    writer.close()
