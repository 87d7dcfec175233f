"""Configuration of a Slurm cluster: how it is reached, and what jobs request."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from athanor.backends.profile import AbsolutePath, ClusterProfile

# Words that stand in options of sbatch, unquoted there. Slurm's own names have no other characters.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*$", max_length=100)]
Words = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@,-]*$", max_length=400)]
Gres = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+)?$", max_length=100)]
Constraint = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.&|()\[\]*,-]+$", max_length=200)]
# A path in an option of sbatch: `%` would be replaced there.
PlainPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./@+=:,-]*$", max_length=400)]
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$", max_length=253)]


class Part(BaseModel):
    """A part of the configuration: immutable, unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalTransport(Part):
    """Slurm's commands on the host of the platform's workers."""

    kind: Literal["local"] = "local"


class SshTransport(Part):
    """Slurm's commands on a login node. `known_hosts_file` holds its key: one that is not there is refused.

    `identity_file`: the private key, readable by the workers alone.
    """

    kind: Literal["ssh"]
    host: Host
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    user: Word
    identity_file: AbsolutePath
    known_hosts_file: AbsolutePath


class RestTransport(Part):
    """slurmrestd. It speaks no TLS by itself: put it on a private network, or behind a proxy (https).

    `token_file` holds a JSON web token of `user`, renewed by the site; without it `scontrol token` makes one on the
    workers' host, again before half of its `token_seconds` is over.
    """

    kind: Literal["rest"]
    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/[^\s]*)?$")]
    user: Word
    token_file: AbsolutePath | None = None
    token_seconds: Annotated[int, Field(ge=60, le=86400 * 30)] = 1800


class Rule(Part):
    """What jobs of a team or of a pool ask for, instead of what the cluster's own fields say."""

    account: Word | None = None
    partition: Words | None = None
    qos: Word | None = None


class PoolRule(Rule):
    """`gres`: as in `gpu:h100`; instead of the one that follows from the accelerator. `constraint`: node features."""

    gres: Gres | None = None
    constraint: Constraint | None = None


class SlurmConfig(Part):
    """A pool's rule wins over a team's, a team's over the cluster's; the QOS of a priority wins over all.

    `log_directory`: on storage shared by all nodes and the host that runs the commands; the workers too when slurmrestd
    is used. `work_directory`: where each node keeps an attempt's files while it runs. `slurm_conf`: for hosts that know
    several clusters. `gres`: by accelerator, as in `{"h100": "gpu:h100"}`; one that is not named is `gpu:NAME`.
    `account_prefix`: teams without a rule have the account of their name behind it. `grace_seconds`: how much longer
    than its time limit a job may live, to save its state; Slurm sends SIGTERM `signal_seconds` before the end of that.
    """

    transport: Annotated[LocalTransport | SshTransport | RestTransport, Field(discriminator="kind")] = LocalTransport()
    slurm_conf: AbsolutePath | None = None
    account: Word | None = None
    partition: Words | None = None
    qos: Word | None = None
    qos_by_priority: dict[Literal["low", "normal", "high"], Word] = {}
    teams: dict[str, Rule] = {}
    pools: dict[str, PoolRule] = {}
    account_prefix: Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9_-]*$", max_length=40)] | None = None
    gres: dict[str, Gres] = {}
    log_directory: PlainPath
    work_directory: AbsolutePath = "/tmp/athanor"  # noqa: S108 - a folder of its own, on each node
    command: Annotated[tuple[str, ...], Field(min_length=1)] = ("python3", "-m", "trainer.agent")
    grace_seconds: Annotated[int, Field(ge=60, le=86400)] = 300
    signal_seconds: Annotated[int, Field(ge=10, le=3600)] = 120
    profile: ClusterProfile = ClusterProfile()
