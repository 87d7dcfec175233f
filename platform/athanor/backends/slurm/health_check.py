"""The health check of a Slurm cluster, for its administrators."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from athanor.backends.base import BackendUnavailable
from athanor.backends.facts import Finding, HealthCheck, Level, NodeFacts, NodeState
from athanor.backends.slurm.client import SlurmClient
from athanor.backends.slurm.config import LocalTransport, RestTransport, SlurmConfig, SshTransport
from athanor.backends.slurm.rest import RestClient
from athanor.backends.slurm.transport import CommandFailed, Deadline

SHORT_MEMORY_SECONDS = 60
SHORT_TOKEN_SECONDS = 60
MIN_RELEASE = (20, 2)
NOT_SHARED = frozenset({"ext2/ext3", "xfs", "btrfs", "tmpfs", "overlayfs", "zfs"})


def check_health(config: SlurmConfig, client: SlurmClient) -> HealthCheck:
    """Return the findings. A cluster that does not answer is a finding."""
    deadline = Deadline()
    try:
        settings = client.settings(deadline)
        with client.jobs(deadline) as jobs:
            ours = sum(job.is_alive for job in jobs)
        nodes = client.nodes(deadline)
    except BackendUnavailable as error:
        return HealthCheck("", (Finding("answer", Level.ERROR, str(error), _reach(config)),), {})
    version = settings.get("SLURM_VERSION", "")
    kinds = sorted({node.accelerator for node in nodes})
    findings = [
        Finding("answer", Level.OK, f"Slurm {version} answers; {ours} jobs of the platform are there"),
        *_release(version),
        *_settings(settings),
        *_nodes(config, nodes),
        *_folder(config, client, deadline),
        *_transport(config, client, deadline),
    ]
    facts = {
        "transport": config.transport.kind,
        "accounting": settings.get("AccountingStorageType", "").endswith("slurmdbd"),
        "accelerators": kinds,
        "partitions": sorted({pool for node in nodes for pool in node.pools}),
        "topology": any(node.topology for node in nodes),
        **{name: settings[name] for name in FACTS if name in settings},
    }
    return HealthCheck(version, tuple(findings), facts)


FACTS = (
    "ClusterName", "MinJobAge", "MaxJobCount", "SelectType", "SelectTypeParameters", "PreemptType", "PreemptMode",
    "JobRequeue", "KillWait", "SchedulerParameters", "TopologyPlugin", "AuthAltTypes", "AccountingStorageEnforce",
)  # fmt: skip


def _reach(config: SlurmConfig) -> str:
    match config.transport:
        case LocalTransport():
            return "Install Slurm's commands on the workers' host, and give `slurm_conf` if it is not the usual one."
        case SshTransport(host=host):
            return (
                f"Try `ssh` to {host} with the same key; its host key must be in `known_hosts_file`, and Slurm's"
                " commands in the PATH of a login that is not interactive."
            )
        case RestTransport(url=url):
            return f"See that slurmrestd runs at {url}, and that the token is one of `user`'s and has not expired."


def _release(version: str) -> Iterator[Finding]:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < MIN_RELEASE:
        said = f"Slurm {version} is older than any that the platform was written for"
        yield Finding("version", Level.WARNING, said, "Update Slurm to 20.02 or later.")


def _settings(settings: Mapping[str, str]) -> Iterator[Finding]:
    if "MinJobAge" not in settings:
        said = "slurmrestd does not report the cluster's configuration, and Slurm's commands are not installed here"
        yield Finding("configuration", Level.WARNING, said, "Install Slurm's commands on the server to check it.")
        return
    if settings.get("AccountingStorageType", "").endswith("slurmdbd"):
        yield Finding("accounting", Level.OK, "slurmdbd remembers how jobs ended")
    else:
        said = "without accounting Slurm forgets jobs; their ends are known from what they write down themselves"
        yield Finding("accounting", Level.WARNING, said, "Set up slurmdbd (AccountingStorageType).")
    age = settings["MinJobAge"].split()[0]
    if age.isdigit() and 0 < int(age) < SHORT_MEMORY_SECONDS:
        said = f"ended jobs are forgotten after {age} s"
        yield Finding("MinJobAge", Level.WARNING, said, "Set MinJobAge to 300 or more.")
    if "job_env" in settings.get("AccountingStoreFlags", ""):
        said = "the accounting stores the variables of jobs, tokens and secrets among them"
        yield Finding("AccountingStoreFlags", Level.WARNING, said, "Take job_env out of AccountingStoreFlags.")
    if not settings.get("SelectType", "").startswith("select/cons"):
        said = f"{settings.get('SelectType')} gives whole nodes: GPUs are not counted"
        yield Finding("SelectType", Level.WARNING, said, "Set SelectType=select/cons_tres.")
    if settings.get("EnforcePartLimits", "NO") == "NO":
        said = "a job that no partition can ever run is taken, and waits for good"
        yield Finding("EnforcePartLimits", Level.WARNING, said, "Set EnforcePartLimits=ALL.")
    mode = settings.get("PreemptMode", "OFF")
    if settings.get("PreemptType", "preempt/none") == "preempt/none" or mode == "OFF":
        yield Finding("preemption", Level.OK, "no job is preempted")
    elif "SUSPEND" in mode:
        said = "preempted jobs are suspended and keep their GPUs' memory; others may fail for it"
        yield Finding("preemption", Level.WARNING, said, "Set PreemptMode=REQUEUE or CANCEL for these partitions.")
    elif "send_user_signal" in settings.get("SlurmctldParameters", "") + settings.get("PreemptParameters", ""):
        yield Finding("preemption", Level.OK, "a preempted job is signalled before, and saves its state")
    else:
        said = "a preempted job gets SIGTERM only in partitions (or QOS) that have a GraceTime"
        remedy = "Set GraceTime to 120 or more, or SlurmctldParameters=preempt_send_user_signal."
        yield Finding("preemption", Level.WARNING, said, remedy)


def _nodes(config: SlurmConfig, nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    there = {pool for node in nodes for pool in node.pools}
    rules = [config.partition, *(rule.partition for rule in (*config.teams.values(), *config.pools.values()))]
    for partition in sorted({name for rule in rules if rule for name in rule.split(",")}):
        if partition not in there:
            known = ", ".join(sorted(there)) or "none"
            yield Finding("partition", Level.ERROR, f"no node is in partition {partition!r}", f"Use one of: {known}.")
    up = [node for node in nodes if node.state is NodeState.READY]
    if not up:
        remedy = "See `sinfo -R` for the reasons."
        yield Finding("nodes", Level.ERROR, f"none of {len(nodes)} nodes takes jobs", remedy)
    else:
        level = Level.OK if len(up) == len(nodes) else Level.WARNING
        remedy = "" if level is Level.OK else "See `sinfo -R` for the reasons of the others."
        yield Finding("nodes", level, f"{len(up)} of {len(nodes)} nodes take jobs", remedy)
    kinds = sorted({node.accelerator for node in nodes} - {"cpu"})
    if "gpu" in kinds:
        said = "some GPUs have no type: jobs cannot ask for one kind of them"
        yield Finding("gres", Level.WARNING, said, "Give them types (Gres=gpu:h100:8, and Type= in gres.conf).")
    elif kinds:
        yield Finding("gres", Level.OK, f"GPUs by type: {', '.join(kinds)}")
    for accelerator, gres in config.gres.items():
        kind = gres.partition(":")[2]
        if kind and kind not in kinds:
            remedy = f"Correct `gres`; there are: {', '.join(kinds) or 'none'}."
            yield Finding("gres", Level.ERROR, f"no node has {gres}, which {accelerator!r} stands for", remedy)


def _folder(config: SlurmConfig, client: SlurmClient, deadline: Deadline) -> Iterator[Finding]:
    folder, program = config.log_directory, shlex.quote(config.command[0])
    quoted = shlex.quote(folder)
    asked = (
        f"[ -d {quoted} ] && [ -w {quoted} ] && echo writable || echo no\n"
        f"stat -f -c %T {quoted} 2>/dev/null || echo -\n"
        f"command -v {program} >/dev/null && echo there || echo no\nid -un\n"
    )
    try:
        said = client.files.run(asked, deadline).decode(errors="replace").splitlines()
    except (CommandFailed, BackendUnavailable) as error:
        yield Finding("log directory", Level.ERROR, f"{folder}: {error}", "Give the host a shell, and the folder.")
        return
    writable, kind, command, user = (*said, "", "", "", "")[:4]
    if writable != "writable":
        remedy = f"Make it on storage that all nodes share, and give it to {user or 'the user'}."
        yield Finding("log directory", Level.ERROR, f"{folder} is not there, or cannot be written", remedy)
    elif kind in NOT_SHARED:
        said_of_it = f"{folder} is on {kind}, which is usually a host's own disk"
        yield Finding("log directory", Level.WARNING, said_of_it, "Take a folder that all nodes share.")
    else:
        yield Finding("log directory", Level.OK, f"{folder} can be written")
    if command != "there":
        detail = f"{config.command[0]} is not found on this host; on the nodes it must be"
        yield Finding("command", Level.WARNING, detail, "Give `command` with its whole path.")
    if user == "root":
        detail = "jobs run as root"
        yield Finding("user", Level.WARNING, detail, "Let the platform use an account of its own on the cluster.")


def _transport(config: SlurmConfig, client: SlurmClient, deadline: Deadline) -> Iterator[Finding]:
    if not isinstance(client, RestClient) or not isinstance(config.transport, RestTransport):
        return
    if config.transport.url.startswith("http://"):
        detail = "slurmrestd is reached without TLS: anyone who sees the traffic can act for the user"
        yield Finding("tls", Level.WARNING, detail, "Put it behind a proxy with TLS, or on a private network.")
    left = client.token_seconds_left(deadline)
    if left is not None and left < SHORT_TOKEN_SECONDS:
        detail = f"the token ends in {max(left, 0):.0f} s"
        yield Finding("token", Level.ERROR, detail, "Write another into `token_file`, well before it ends.")
    elif left is not None:
        yield Finding("token", Level.OK, f"the token is good for {left:.0f} s more")
