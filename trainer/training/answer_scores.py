"""Scores of generated answers: exact match and F1 as in SQuAD, and matches of a regular expression."""

import re
import signal
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trainer.contract.evaluation import EvaluationTask, Score
from trainer.contract.run import EndClass
from trainer.errors import TrainerError

MATCH_SECONDS = 2.0
"""CPU time for the search of a pattern in one answer: some patterns take exponential time."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class MatchTimeoutError(Exception):
    """The search of a pattern took too long."""


def normalise(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation and the words a, an and the, and with single spaces
    (Rajpurkar et al. 2016, "SQuAD", section 6.1)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer is equal to one of the references when both are normalised, else 0."""
    return float(normalise(answer) in map(normalise, references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the largest F1 of the answer's words against those of a reference: 2 p r / (p + r) with the precision p
    and the recall r of the words, counted as often as they occur (Rajpurkar et al. 2016, section 6.1). Without words
    in one of both it is 1 if the other has none either, else 0 (as for SQuAD 2.0, Rajpurkar et al. 2018)."""
    return max(_f1(normalise(answer).split(), normalise(each).split()) for each in references)


def _f1(words: list[str], reference: list[str]) -> float:
    if not words or not reference:
        return float(words == reference)
    common = (Counter(words) & Counter(reference)).total()
    return 2 * common / (len(words) + len(reference))  # = 2 p r / (p + r), p = common / words, r = common / reference


def pattern_match(answer: str, references: Sequence[str], pattern: re.Pattern[str]) -> float:
    """Return 1 if the pattern is found in the answer and the group of its first match, if it has one, is equal to a
    reference when both are normalised; else 0. Raises MatchTimeoutError; only on a process's main thread."""
    with _cpu_limit(MATCH_SECONDS):
        found = pattern.search(answer)
    if found is None or not pattern.groups:
        return float(found is not None)
    return exact_match(found[1] or "", references)


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raise MatchTimeoutError in the context after this process has computed for so long. `re` handles signals during a
    search."""

    def interrupt(*_: object) -> None:
        raise MatchTimeoutError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def score_answers(task: EvaluationTask, score: Score, answers: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return a score from 0 to 1 of each answer, given with its references.

    Raises TrainerError (BAD_SPEC) if the task's pattern takes too long.
    """
    functions: dict[str, Callable[[str, Sequence[str]], float]] = {"exact_match": exact_match, "f1": f1}
    if score == "regex":
        assert task.pattern is not None, "the score needs it"
        pattern = re.compile(task.pattern)
        functions["regex"] = lambda answer, references: pattern_match(answer, references, pattern)
    found = []
    for number, (answer, references) in enumerate(answers, 1):
        try:
            found.append(functions[score](answer, references))
        except MatchTimeoutError as error:
            raise TrainerError(
                EndClass.BAD_SPEC,
                f"the pattern {task.pattern!r} of the evaluation {task.name!r} took longer than {MATCH_SECONDS:g} s of "
                f"CPU time on answer {number} of {len(answer)} characters: it backtracks too much; write it without "
                "repetitions inside repetitions, such as a+ instead of (a+)+",
            ) from error
    return found
