"""The demonstration of `make quota-demo`, with real training on the whole stack."""

import subprocess
import sys

import pytest

from deploy.local.administrator import Administrator
from deploy.local.environment import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_quota_edit_a_borrow_a_reclaim_with_a_checkpoint_and_a_budgets_stop(stack) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "deploy.local.quota_demo"],
        cwd=REPOSITORY,
        env=stack.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    for seen in ("of them borrowed", "gave its slots back", "continues as attempt 2", "stopped at step"):
        assert seen in told.stdout
    nodes = Administrator(stack.credentials).call("GET", "quotas")["nodes"]
    left = [node["grants"] for node in nodes if node["name"].startswith("quota-demo")]
    assert left == [[], []], "what was changed is put back"
