"""TensorBoard's event files, without torch or TensorFlow."""

from pathlib import Path
from typing import Any

from trainer.contract.run import EndClass, MetricPoint


class EventFiles:
    """TensorBoard event files in a folder."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._generation: int | None = None

    def open(self) -> None:
        """Open the writer."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415 - an extra

        self._writer = EventFileWriter(str(self._folder))

    def write(self, points: list[MetricPoint]) -> None:
        """Write points. After a restart, TensorBoard hides what was written of the same and later steps."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # noqa: PLC0415 - an extra
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - an extra

        for point in points:
            at = {"step": point.step, "wall_time": point.time.timestamp()}
            if point.generation != self._generation:
                # What an earlier process wrote of this step and later ones is not shown any more.
                self._generation = point.generation
                self._writer.add_event(Event(**at, session_log=SessionLog(status=SessionLog.START)))
            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in point.values.items() if value is not None
            ]
            self._writer.add_event(Event(**at, summary=Summary(value=values)))
        self._writer.flush()

    def close(self, end_class: EndClass) -> None:
        """Close the writer."""
        self._writer.close()
