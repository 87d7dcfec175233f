"""Progress of a standalone run, for a person at a terminal."""

import sys
from pathlib import Path

from trainer.contract.run import Batch, EndClass
from trainer.reporting.log_format import LogFormatter

SECONDS_BETWEEN_STEPS = 1.0


class Terminal:
    """Prints the progress of a standalone run."""

    def __init__(self, steps: int) -> None:
        self._log_formatter = LogFormatter(steps, SECONDS_BETWEEN_STEPS, _say)

    def show(self, kind: str, batch: Batch) -> None:
        """Print a batch as it is delivered."""
        for event in batch.events:
            self._log_formatter.event(event)
        for line in batch.lines:
            who = "agent" if line.rank < 0 else f"rank {line.rank}"
            _say(f"[{who}] {line.text}")
        for point in batch.points:
            self._log_formatter.point(point)

    def finish(self, end_class: EndClass, output: Path) -> None:
        """Print how the run ended and where its files are."""
        _say(f"{end_class.value}; the files of this run are in {output}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
