"""`python -m trainer.agent`: started once per node by a backend and configured by contract/environment."""

import logging
import os
import socket
import sys
from pathlib import Path

from trainer.agent.environment import drop_unknown_variables, require, set_allocator_default
from trainer.agent.node_preflight import measure_node
from trainer.contract import environment as names
from trainer.resilience.forking import start_fork_server
from trainer.resilience.parent_death import die_with_parent


def main() -> int:
    """Run the agent of a node. Return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s agent %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if os.environ.get(names.DIE_WITH_PARENT) == "1":
        die_with_parent()
    if names.PREFLIGHT_RANKS in os.environ:
        return measure_node(int(os.environ[names.PREFLIGHT_RANKS]), Path(require(names.WORK_DIR)))
    url, token, work = require(names.AGENT_URL), require(names.ATTEMPT_TOKEN), Path(require(names.WORK_DIR))
    index, name = int(os.environ.get(names.NODE_INDEX, "0")), os.environ.get(names.NODE_NAME, socket.gethostname())
    address, topology = os.environ.get(names.NODE_ADDRESS, "127.0.0.1"), os.environ.get(names.NODE_TOPOLOGY, "")
    drop_unknown_variables()
    set_allocator_default()
    os.umask(0o077)  # data and models lie as plain files while a job uses them; workers inherit it
    start_fork_server()
    # Only now what takes time to import: torch is on its way in the fork server meanwhile.
    from trainer.agent.rendezvous_client import NodeIdentity  # noqa: PLC0415 - as below
    from trainer.agent.supervisor import NodeConfig, Supervisor  # noqa: PLC0415 - see above
    from trainer.client.http import PlatformClient  # noqa: PLC0415 - as above
    from trainer.contract.run import EXIT_STATUS, EndClass  # noqa: PLC0415 - as above
    from trainer.resilience.assignment import HttpConnection  # noqa: PLC0415 - as above
    from trainer.resilience.stop_signals import on_stop_signal  # noqa: PLC0415 - as above

    cache, kept = os.environ.get(names.CACHE_DIR), os.environ.get(names.CHECKPOINT_DIR)
    config = NodeConfig(
        work=work,
        cache=Path(cache) if cache else None,
        interruption_notice=os.environ.get(names.INTERRUPTION_NOTICE, ""),
        node=NodeIdentity(index, name, address, [each for each in topology.split("/") if each]),
    )
    connection = HttpConnection(url, token, Path(kept) if kept else None)
    supervisor = Supervisor(connection, PlatformClient(url, token), config)
    on_stop_signal(lambda *_: supervisor.request_stop(None))
    try:
        return EXIT_STATUS[supervisor.run()]
    except Exception:
        logging.getLogger(__name__).exception("internal error in the agent")
        return EXIT_STATUS[EndClass.INTERNAL_ERROR]


if __name__ == "__main__":
    sys.exit(main())
