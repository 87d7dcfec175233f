"""The first function of a worker process; importable without torch, so that the agent can name it."""

import os
import sys

from trainer.contract.environment import secret_variable
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.resilience.assignment import Assignment
from trainer.resilience.failures import classify_exception, write_failure

WITH_TRACEBACK = frozenset(
    {EndClass.INTERNAL_ERROR, EndClass.DEVICE_EXCEPTION, EndClass.COLLECTIVE_TIMEOUT, EndClass.NETWORK_ERROR}
)
"""Ends of which the log has the place in the code, too."""


def run_worker(assignment: Assignment) -> None:
    """Train, then exit with the status of the end class. A failure is reported to the agent, and printed to the log."""
    # Set here, so that secrets are not in /proc/PID/environ, which has the environment at the start of the process.
    os.environ.update({secret_variable(name): value for name, value in assignment.secrets.items()})
    from trainer.training.worker import work  # noqa: PLC0415 - loads torch, already there in the fork server's children

    try:
        end_class = work(assignment)
    except BaseException as error:
        failure = classify_exception(error, assignment.rank)
        try:
            write_failure(assignment.failures, failure)
        except OSError as refusal:  # such as a full disk: the agent has only the exit status and the log
            sys.stderr.write(f"the report of this failure could not be written: {refusal}\n")
        if failure.end_class in WITH_TRACEBACK:
            raise
        sys.stderr.write(f"{failure.end_class}: {failure.message}\n")
        sys.exit(EXIT_STATUS[failure.end_class])
    sys.exit(EXIT_STATUS[end_class])
