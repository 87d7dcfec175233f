"""docs/reference/errors.md: codes of problem documents, and why jobs wait and end."""

from collections.abc import Iterator

from athanor.jobs.reasons import MEANINGS, Blame, Meaning, Reason, Retry
from deploy.reference.markdown import code, page, table
from deploy.reference.problem_codes import Problem, problems

MAX_TEXTS = 3  # of a code that is raised in many places
REFUNDED = (Blame.INFRASTRUCTURE, Blame.PLATFORM, Blame.PREEMPTOR)

INTRODUCTION = """
The API answers an error with a problem document (RFC 9457, `application/problem+json`):
"""
MEMBERS = (
    ("type", "`urn:athanor:error:` and the code."),
    ("title", "Short name of the status."),
    ("status", "HTTP status, as a number."),
    ("code", "Stable name of the error, for programs. The table below lists all of them."),
    ("detail", "What is wrong, with the values concerned."),
    ("remedy", "What to do. May be left out."),
    ("errors", "Problems of single fields: `pointer` (a JSON pointer), `code` and `detail`. May be left out."),
    ("request_id", "Id of the request, also in the header `X-Request-ID`."),
)
AFTER_MEMBERS = """
Some codes add members of their own. Answers with status 429 and 503, and some with 409, carry `Retry-After` in seconds.
"""
CODES = """
## Error codes

`…` stands for a value. A code that is used in many places shows some of its details and remedies. A few codes come
from operators' commands only.
"""
ENDINGS = """
## Why a job ends

The reason of a job or attempt is in `reason.code`. Retries are explained under
[`retry`](spec.md#retry): *charged* retries count towards `max_charged`, *free* ones towards `max_free`; *at most*: no
more are made after this reason within the window. A job that has no retry left gets the final status. *Charged to*:
the run time of an attempt is charged to the budgets of its team. Where the reason is not the user's fault, the time
since the last checkpoint is lost time and is refunded, unless the platform had already asked the attempt to stop. The
party at fault is in parentheses.

An attempt of several processes or nodes ends with the error that explains most: a fault of an accelerator or a lack of
memory on one rank counts, whichever rank reports first, and not the timeouts of the ranks that waited for it.
`gpu_fault`, `device_exception` and `node_storage_error` are recorded as an incident of the node that reported them, and
the job does not return to that node while its pool has enough others. An illegal memory access or a failed assertion on
an accelerator is a `device_exception`: the program is suspected first. The retry runs on other nodes; where it fails
there too, it is the program. Where the kernel's log names a fault of the device, or several jobs fail on the same node
(`suspects` of a cluster), it is the device.
"""
WAITING = """
## Why a job waits
"""


def errors_page() -> str:
    """Return the page."""
    members = table(("member", "content"), ((code(name), text) for name, text in MEMBERS))
    codes = table(("code", "status", "detail", "remedy"), map(_problem, problems()))
    endings = table(("reason", "final status", "retry", "charged to", "message", "remedy"), _endings())
    waiting = table(("reason", "message", "remedy"), _waiting())
    return page(
        "Errors and reasons", INTRODUCTION, members, AFTER_MEMBERS, CODES, codes, ENDINGS, endings, WAITING, waiting
    )


def _problem(problem: Problem) -> tuple[str, ...]:
    statuses = ", ".join(map(str, sorted(problem.statuses)))
    return code(problem.code), statuses, _texts(problem.messages), _texts(problem.remedies)


def _texts(texts: list[str]) -> str:
    return "; or: ".join(texts[:MAX_TEXTS]) + ("; and others" if len(texts) > MAX_TEXTS else "")


def _endings() -> Iterator[tuple[str, ...]]:
    for reason, meaning in _meanings():
        if meaning.final is not None:
            retry = "none" if meaning.retry is Retry.NEVER else meaning.retry.value
            retry += "" if meaning.max_retries is None else f", at most {meaning.max_retries}"
            yield code(reason.value), code(meaning.final.value), retry, _payer(meaning), meaning.message, meaning.remedy


def _waiting() -> Iterator[tuple[str, ...]]:
    for reason, meaning in _meanings():
        if meaning.final is None:
            yield code(reason.value), meaning.message, meaning.remedy


def _meanings() -> Iterator[tuple[Reason, Meaning]]:
    return ((reason, MEANINGS[reason]) for reason in Reason)


def _payer(meaning: Meaning) -> str:
    return f"team, less lost time ({meaning.blame.value})" if meaning.blame in REFUNDED else "team"
