"""Exceptions that end an attempt, or a worker group of it, with a given end class."""

from collections.abc import Sequence
from typing import TypeAlias

from trainer.contract.run import EndClass

EvidenceRow: TypeAlias = tuple[int, str, list[tuple[int, float]]]
"""Step, name of a figure, and its value by rank."""


class TrainerError(Exception):
    """Ends the attempt with `end_class`. The message names what is wrong and what to do about it. `because_of_peer`:
    another rank ends with the cause."""

    def __init__(self, end_class: EndClass, message: str, *, because_of_peer: bool = False) -> None:
        super().__init__(message)
        self.end_class, self.because_of_peer = end_class, because_of_peer


class PlaceError(TrainerError):
    """Ends a worker group because of the place of some ranks: with `end_class` there, and elsewhere as if these ranks
    were lost."""

    def __init__(self, end_class: EndClass, message: str, *, is_here: bool) -> None:
        super().__init__(end_class if is_here else EndClass.COLLECTIVE_TIMEOUT, message, because_of_peer=not is_here)


class CorruptionError(PlaceError):
    """Ends a worker group, of which some ranks had other parameters than their replicas after `step` steps. `is_here`:
    this rank is one of them. `evidence`: what replicas computed since they last agreed,
    if it is not known which are wrong."""

    def __init__(self, message: str, step: int, evidence: Sequence[EvidenceRow] = (), *, is_here: bool) -> None:
        super().__init__(EndClass.SILENT_CORRUPTION, message, is_here=is_here)
        self.step, self.evidence = step, evidence
