"""Exceptions that end an attempt, or a worker group of it, with a given end class."""

from dataclasses import dataclass

from trainer.contract.run import EndClass


class TrainerError(Exception):
    """Ends the attempt with `end_class`. The message names what is wrong and what to do about it."""

    def __init__(self, end_class: EndClass, message: str) -> None:
        super().__init__(message)
        self.end_class = end_class


@dataclass(frozen=True)
class Corruption:
    """The state after `step` steps is corrupted; the newest that is known to be intact is that after `intact_step`."""

    step: int
    intact_step: int


class CorruptionError(TrainerError):
    """Ends a worker group, of which one rank has other parameters than its replicas. `is_of_peer`: of another rank."""

    def __init__(self, message: str, corruption: Corruption, *, is_of_peer: bool) -> None:
        super().__init__(EndClass.COLLECTIVE_TIMEOUT if is_of_peer else EndClass.SILENT_CORRUPTION, message)
        self.corruption, self.is_of_peer = corruption, is_of_peer
