"""Scores of generated answers: exact match and F1 as in SQuAD, matches of a regular expression, and validity by a JSON
schema."""

import re
import signal
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainer.contract.evaluation import EvaluationTask, Score
from trainer.contract.json_schema import compile_schema, is_valid_answer
from trainer.contract.run import EndClass
from trainer.errors import TrainerError

MATCH_SECONDS = 2.0
"""CPU time for one answer: some patterns, and some schemas that combine many, take exponential time."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class MatchTimeoutError(Exception):
    """The search of a pattern, or the validation by a schema, took too long."""


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


def schema_match(answer: str, validator: Any) -> float:
    """Return 1 if the answer is JSON and valid by the schema of the validator (`trainer.contract.json_schema`), else 0.
    Raises MatchTimeoutError and RecursionError; only on a process's main thread."""
    with _cpu_limit(MATCH_SECONDS):
        return float(is_valid_answer(answer, validator))


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

    Raises TrainerError (BAD_SPEC) if the task's pattern takes too long, or its schema takes too long or has too many
    levels.
    """
    functions: dict[str, Callable[[str, Sequence[str]], float]] = {"exact_match": exact_match, "f1": f1}
    if score == "regex":
        assert task.pattern is not None, "the score needs it"
        pattern = re.compile(task.pattern)
        functions["regex"] = lambda answer, references: pattern_match(answer, references, pattern)
    if score == "json_schema":
        assert task.json_schema is not None, "the score needs it"
        validator = compile_schema(task.json_schema)
        functions["json_schema"] = lambda answer, _: schema_match(answer, validator)
    found = []
    for number, (answer, references) in enumerate(answers, 1):
        try:
            found.append(functions[score](answer, references))
        except (MatchTimeoutError, RecursionError) as error:
            which = f"answer {number} of {len(answer)} characters"
            raise TrainerError(EndClass.BAD_SPEC, _complexity_message(task, score, which, error)) from error
    return found


def _complexity_message(task: EvaluationTask, score: Score, which: str, error: Exception) -> str:
    spent = f"took longer than {MATCH_SECONDS:g} s of CPU time on {which}"
    if score == "regex":
        return (
            f"the pattern {task.pattern!r} of the evaluation {task.name!r} {spent}: it backtracks too much; write it "
            "without repetitions inside repetitions, such as a+ instead of (a+)+"
        )
    if isinstance(error, RecursionError):
        spent = f"has too many levels of schemas for {which}"
    return (
        f"the json_schema of the evaluation {task.name!r} {spent}; write its patterns without repetitions inside "
        "repetitions, such as a+ instead of (a+)+, and nest fewer allOf, anyOf, oneOf and $ref"
    )
