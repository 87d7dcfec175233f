"""`python -m tests.chaos.faults.agent RECORDS KIND PHASE SECONDS`: the agent of a node, with workers of the fault kit.

SECONDS is the limit of phases without regular reports, instead of the half hour that ranks may take on real machines.
"""

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

from tests.chaos.faults.worker import Fault, work
from trainer.agent import __main__ as agent
from trainer.agent import hang_watch, worker_group
from trainer.resilience import progress

HANG_SECONDS = 5.0


def main() -> int:
    """Run the agent. Return its exit status."""
    records, kind, phase, seconds = sys.argv[1:]
    limit = timedelta(seconds=float(seconds))
    worker_group.run_worker = partial(work, Fault(Path(records), kind, phase))
    progress.HANG_SECONDS, hang_watch.EXAMINATION_SECONDS = HANG_SECONDS, 2.0
    progress.STARTUP_TIMEOUT = limit
    progress._LONGEST.update(dict.fromkeys(progress._LONGEST, limit))
    return agent.main()


if __name__ == "__main__":
    sys.exit(main())
