"""Configuration of a Slurm cluster: how it is reached, and what jobs request."""

from typing import Annotated, Literal

from pydantic import Field

from athanor.backends.profile import AbsolutePath, ClusterProfile, Part
from trainer.contract.units import DURATION

# Words that stand in options of sbatch, unquoted there. Slurm's own names have no other characters.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*$", max_length=100)]
Words = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@,-]*$", max_length=400)]
Gres = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+)?$", max_length=100)]
Constraint = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.&|()\[\]*,-]+$", max_length=200)]
# A path in an option of sbatch: `%` would be replaced there.
PlainPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./@+=:,-]*$", max_length=400)]
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$", max_length=253)]


class LocalTransport(Part):
    """Slurm's commands on the host of the platform's workers."""

    kind: Literal["local"] = "local"


class SshTransport(Part):
    """Slurm's commands on a login node, over ssh."""

    kind: Literal["ssh"]
    host: Host
    """Host name or address of the login node."""
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    """Port of its ssh server."""
    user: Word
    """Account on the login node."""
    identity_file: AbsolutePath
    """Private key, readable only by the workers' user."""
    known_hosts_file: AbsolutePath
    """File with the key of the login node. A host that it does not list is refused."""


class RestTransport(Part):
    """slurmrestd. It speaks no TLS by itself: put it on a private network, or behind a proxy (https)."""

    kind: Literal["rest"]
    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/[^\s]*)?$")]
    """Address of slurmrestd."""
    user: Word
    """Account that the requests are made for."""
    token_file: AbsolutePath | None = None
    """File with a JSON web token of the account, renewed by the site. Without it `scontrol token` makes one on the
    workers' host."""
    token_seconds: Annotated[int, Field(ge=60, le=86400 * 30), DURATION] = 1800
    """Lifetime of a token that `scontrol token` makes. It is renewed before half of it is over."""


class Rule(Part):
    """What jobs of a team or of a pool ask for, instead of what the cluster's own fields say."""

    account: Word | None = None
    """Account that jobs are charged to."""
    partition: Words | None = None
    """Partition, or several with commas."""
    qos: Word | None = None
    """Quality of service."""


class PoolRule(Rule):
    """What jobs of a pool ask for, instead of what the cluster's own fields say."""

    gres: Gres | None = None
    """Generic resource of its accelerators, such as `gpu:h100`. Without it, the one that follows from the
    accelerator."""
    constraint: Constraint | None = None
    """Node features that are required."""


class SlurmConfig(Part):
    """A Slurm cluster. A pool's rule wins over a team's, a team's over the cluster's; the QOS of a priority wins over
    all."""

    transport: Annotated[LocalTransport | SshTransport | RestTransport, Field(discriminator="kind")] = LocalTransport()
    """How the cluster is reached: `local`, Slurm's commands on the host of the platform's workers; `ssh`, its commands
    on a login node; `rest`, slurmrestd."""
    slurm_conf: AbsolutePath | None = None
    """Configuration file of Slurm, for hosts that know several clusters."""
    account: Word | None = None
    """Account that jobs are charged to, for teams without a rule or a prefix."""
    partition: Words | None = None
    """Partition that jobs are submitted to, or several with commas. Without it, Slurm's default."""
    qos: Word | None = None
    """Quality of service that jobs request."""
    qos_by_priority: dict[Literal["low", "normal", "high"], Word] = {}
    """Quality of service by the priority of a job: `low`, `normal` or `high`."""
    teams: dict[str, Rule] = {}
    """What jobs of a team request, by the name of the team."""
    pools: dict[str, PoolRule] = {}
    """What jobs of a pool request, by the name of the pool."""
    account_prefix: Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9_-]*$", max_length=40)] | None = None
    """Prefix of the accounts of teams without a rule: the name of the team follows it."""
    gres: dict[str, Gres] = {}
    """Generic resource by accelerator, such as `gpu:h100` for `h100`. One that is not named is `gpu:NAME`."""
    log_directory: PlainPath
    """Directory for the output of jobs, on storage that all nodes share with the host that runs the commands; with
    slurmrestd, with the workers too."""
    work_directory: AbsolutePath = "/tmp/athanor"  # noqa: S108 - a folder of its own, on each node
    """Directory in which each node stores an attempt's files while it runs."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] = ("python3", "-m", "trainer.agent")
    """Command that runs as the agent on each node."""
    grace_seconds: Annotated[int, Field(ge=60, le=86400), DURATION] = 300
    """Time beyond its time limit that a job has in Slurm, to save its state."""
    signal_seconds: Annotated[int, Field(ge=10, le=3600), DURATION] = 120
    """Time before the end in Slurm at which Slurm sends SIGTERM."""
    profile: ClusterProfile = ClusterProfile()
    """The network between the nodes, and where they store data."""
