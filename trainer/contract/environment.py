"""Environment variables with which a backend configures an agent. Nothing else is passed: no keys, no database."""

AGENT_URL = "ATHANOR_AGENT_URL"  # base address of the agent API, without a trailing slash
ATTEMPT_TOKEN = "ATHANOR_ATTEMPT_TOKEN"  # noqa: S105 - the name of a variable, not a secret
NODE_INDEX = "ATHANOR_NODE_INDEX"  # 0 .. nodes + spare nodes - 1: the backend's number of this agent, not a rank
NODE_NAME = "ATHANOR_NODE_NAME"  # by which the backend knows the machine
NODE_ADDRESS = "ATHANOR_NODE_ADDRESS"  # host name or IP address by which the other nodes reach this one
NODE_TOPOLOGY = "ATHANOR_NODE_TOPOLOGY"  # optional: the switches above the node, outermost first, joined by "/"
WORK_DIR = "ATHANOR_WORK_DIR"  # scratch of this attempt on this node: spool, data cache, stack dumps
CACHE_DIR = "ATHANOR_CACHE_DIR"  # optional: node-local, shared by attempts, e.g. for prepared data
SECRET_PREFIX = "ATHANOR_JOB_SECRET_"  # noqa: S105 - of a worker's variables: hf-token is ATHANOR_JOB_SECRET_HF_TOKEN
CHECKPOINT_DIR = "ATHANOR_CHECKPOINT_DIR"  # optional: where copies of jobs' checkpoints are kept near the node
INTERRUPTION_NOTICE = "ATHANOR_INTERRUPTION_NOTICE"  # optional: the file or address that announces a spot interruption
PREFLIGHT_RANKS = "ATHANOR_PREFLIGHT_RANKS"  # optional: the agent only measures its node with as many ranks
PREFLIGHT_ADDRESSES = "ATHANOR_PREFLIGHT_ADDRESSES"  # optional: a JSON object, name: URL, which it then tries to reach
DIE_WITH_PARENT = "ATHANOR_DIE_WITH_PARENT"  # "1": the agent ends with the process that started it


def secret_variable(name: str) -> str:
    """Return the name of the variable in which a worker process finds the secret of this name."""
    return SECRET_PREFIX + name.upper().replace("-", "_")
