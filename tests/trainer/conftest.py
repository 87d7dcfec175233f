"""One warm fork server for all trainer tests of this process: a run then starts in a fraction of a second."""

import pytest

from trainer.resilience.forking import start_fork_server


@pytest.fixture(scope="session", autouse=True)
def fork_server(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--no-processes"):
        start_fork_server()
