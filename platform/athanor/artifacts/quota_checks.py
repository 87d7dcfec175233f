"""Check submissions against the limits of the quota tree, including stored bytes."""

from functools import partial

from athanor.artifacts import usage
from athanor.core.errors import Conflict, FieldProblem
from athanor.jobs.services import Submission
from athanor.quotas import limits, selectors


def check(submission: Submission) -> None:
    """Check a submission, within its transaction.

    Raises Invalid for a job that can never run, Conflict for one that cannot be accepted now.
    """
    path = selectors.path_of_team(submission.team)
    limits.check(path, submission.spec, submission.pool)
    usage.check(path)
    limits.check_queue(path)


def check_plan(submission: Submission) -> list[FieldProblem]:
    """Check a plan like a submission, but return conflicts as warnings."""
    path = selectors.path_of_team(submission.team)
    limits.check(path, submission.spec, submission.pool)
    warnings = []
    for ask in (usage.check, partial(limits.check_queue, exactly=False)):
        try:
            ask(path)
        except Conflict as refusal:
            warnings.append(FieldProblem("/", refusal.code, f"{refusal.message}; {refusal.remedy}"))
    return warnings
