"""A real Slurm on this host, for tests and benchmarks: munge, one controller, four nodes, all on loopback ports.

Nothing of the system's own Slurm is touched: the key, the sockets, the state and the logs are in a folder of its own,
so that a second one runs beside it. Needs root (slurmd changes users) and Debian's slurm-wlm and munge. `with
slurm_cluster() as cluster:` gives one whose nodes are idle; `cluster.config(...)` is what a cluster record of kind
"slurm" takes.

Two nodes have GPUs of type h100 and two of type a100 (two each; there is none, so nothing may use them), eight cores
and 16 GB each (there are fewer). Partition `main` is everyone's; `urgent` is on the same nodes and preempts it.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from deploy.local.handle import wait_until
from tests.slurm import accounting
from tests.slurm.processes import die_with_parent, free_ports, listens, search_path

NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
NOBODY = 65534

CONFIGURATION = """
ClusterName=athanortest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/controller.pid
SlurmctldLogFile={folder}/log/controller.log
SlurmdLogFile={folder}/log/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
TopologyPlugin=topology/tree
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=5,preempt_youngest_first
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
MaxJobCount=20000
MinJobAge={min_job_age_seconds}
SlurmdTimeout={node_timeout_seconds}
KillWait=3
MessageTimeout=3
TCPTimeout=1
ReturnToService=2
{accounting}
NodeName=DEFAULT CPUs=8 RealMemory=16000 State=UNKNOWN
{nodes}
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=20 State=UP
PartitionName=urgent Nodes=n[1-4] MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> str:
    """Why there can be no cluster here; empty when there can be."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    if absent:
        return f"{', '.join(absent)} not installed: as root, apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd and munged are started as root"


@contextlib.contextmanager
def slurm_cluster(
    *, min_job_age_seconds: int = 600, node_timeout_seconds: int = 8, with_accounting: bool = False
) -> Iterator["SlurmCluster"]:
    """A cluster whose nodes are all idle; everything of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="athanor-slurm-", dir="/tmp"))  # short: a socket's path has 107 bytes
    cluster = SlurmCluster(folder, min_job_age_seconds, node_timeout_seconds)
    try:
        with accounting.accounting(folder) if with_accounting else contextlib.nullcontext() as kept:
            try:
                cluster.prepare(kept)
                cluster.start()
                yield cluster
            finally:
                cluster.stop()
    except BaseException as error:
        error.add_note(cluster.last_words())
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SlurmCluster:
    """What a test does to a cluster: run its commands, take parts of it away, and give them back."""

    def __init__(self, folder: Path, min_job_age_seconds: int, node_timeout_seconds: int) -> None:
        self.folder = folder
        self.slurm_conf = folder / "slurm.conf"
        self.log_directory = folder / "shared"
        self.work_directory = folder / "work"
        self.environment = {"PATH": search_path(), "SLURM_CONF": str(self.slurm_conf), "LC_ALL": "C.UTF-8"}
        self._settings = {"min_job_age_seconds": min_job_age_seconds, "node_timeout_seconds": node_timeout_seconds}
        self._fixed: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kept: accounting.Accounting | None = None

    # What the tests and the platform need of it.

    def config(self, **changes: Any) -> dict[str, Any]:
        """The configuration of a cluster record of kind "slurm" that leads here, as JSON values."""
        return {
            "slurm_conf": str(self.slurm_conf),
            "log_directory": str(self.log_directory),
            "work_directory": str(self.work_directory),
            "partition": "main",
            **changes,
        }

    def run(self, *command: str, check: bool = True, text: str | None = None) -> str:
        """What a command of Slurm's prints, run as an administrator would."""
        done = subprocess.run(
            command, env=self.environment, input=text, capture_output=True, text=True, check=False, timeout=60
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def log(self, name: str) -> str:
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def last_words(self) -> str:
        """The ends of its logs: why something did not start."""
        logs = sorted((self.folder / "log").glob("*.out"))
        return "\n".join(f"== {log.name}\n" + log.read_text(errors="replace")[-1500:] for log in logs)

    def configure(self, **settings: int) -> None:
        """Change `min_job_age_seconds` or `node_timeout_seconds` of the running cluster."""
        self._settings.update(settings)
        self._write_configuration()
        self.run("scontrol", "reconfigure")

    @property
    def keeps_accounts(self) -> bool:
        return self._kept is not None

    # Parts of it die and come back.

    def stop_controller(self) -> None:
        self._end("controller", signal.SIGTERM)

    def start_controller(self) -> None:
        self._start("controller", "slurmctld", "-D", "-f", str(self.slurm_conf))
        wait_until(lambda: "UP" in self.run("scontrol", "ping", check=False), "slurmctld answers", 30)

    def kill_node(self, node: str) -> None:
        """As if its power were cut: slurmd, its step daemons, and all that they started."""
        lost = [self._processes.pop(node).pid, *self._step_daemons(node)]
        processes = [psutil.Process(pid) for pid in lost if psutil.pid_exists(pid)]
        family = processes + [child for process in processes for child in _children(process)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.slurm_conf))

    def wait_for_nodes(self) -> None:
        def all_are_up() -> bool:
            states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
            return len(states) == len(NODES) and all(state in ("idle", "mixed", "allocated") for state in states)

        wait_until(all_are_up, "all nodes are up", 60)

    def clear(self) -> None:
        """No job is left that lives, and every node is there and takes work."""
        self.run("scancel", "--user=root", check=False)
        self.run("scancel", "--user=root", "--signal=KILL", check=False)
        for node in NODES:
            if node not in self._processes:
                self.start_node(node)
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        wait_until(lambda: not self.run("squeue", "-h").strip(), "all jobs have ended", 60)
        self.wait_for_nodes()

    # Start and stop.

    def prepare(self, kept: accounting.Accounting | None = None) -> None:
        self._kept = kept
        self.folder.chmod(0o755)
        for name in ("munge", "state", "spool", "log", "shared", "work", "devices"):
            (self.folder / name).mkdir(mode=0o755)
        _write_key(self.folder / "munge" / "key", 1024)
        _write_key(self.folder / "jwt.key", 32)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        for number in (0, 1):
            # slurmd wants devices; these are /dev/null by another name.
            os.mknod(self.folder / "devices" / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        devices = f"Name=gpu Type={{}} File={self.folder}/devices/gpu[0-1]"
        (self.folder / "gres.conf").write_text(
            f"NodeName=n[1-2] {devices.format('h100')}\nNodeName=n[3-4] {devices.format('a100')}\n"
        )
        (self.folder / "topology.conf").write_text(
            "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\nSwitchName=spine Switches=leaf[1-2]\n"
        )
        free = free_ports(1 + len(NODES))
        kinds = ("h100", "h100", "a100", "a100")
        host = socket.gethostname().partition(".")[0]
        self._fixed = {
            "host": host,
            "folder": str(self.folder),
            "controller_port": str(free[0]),
            "accounting": kept.configuration if kept else "JobCompType=jobcomp/none",
            "nodes": "\n".join(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} Gres=gpu:{kind}:2"
                for node, port, kind in zip(NODES, free[1:], kinds, strict=True)
            ),
        }
        self._write_configuration()

    def start(self) -> None:
        munge = self.folder / "munge"
        self._start(
            "munge", "munged", "--foreground", f"--socket={munge}/socket", f"--key-file={munge}/key",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )  # fmt: skip
        wait_until(lambda: (munge / "socket").exists(), "munged listens", 30)
        if self._kept is not None:
            self._start("accounting", "slurmdbd", "-D")
            self._kept.wait(self.run)
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.wait_for_nodes()

    def stop(self) -> None:
        """Ends every process of the cluster, by its id, jobs first."""
        daemons = [pid for node in NODES for pid in self._step_daemons(node)]
        for name in (*NODES, "controller", "accounting", "munge"):
            if name in NODES and name in self._processes:
                self.kill_node(name)
            elif name in self._processes:
                self._end(name, signal.SIGKILL if name == "munge" else signal.SIGTERM)
        for pid in daemons:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def rest(self) -> Iterator[str]:
        """The address of a slurmrestd that asks for a token (`scontrol token`). It refuses to run as root."""
        (port,) = free_ports(1)
        self._start(
            "rest", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
            "slurmrestd", "-f", str(self.slurm_conf), "-a", "rest_auth/jwt", "-s", "openapi/v0.0.38",
            f"127.0.0.1:{port}",
            environment={"SLURMRESTD_SECURITY": "disable_unshare_files,disable_unshare_sysv", "SLURM_JWT": "daemon"},
        )  # fmt: skip
        try:
            wait_until(lambda: listens(port), "slurmrestd listens", 30)
            yield f"http://127.0.0.1:{port}"
        finally:
            self._end("rest", signal.SIGTERM)

    def token(self, lifespan_seconds: int = 3600) -> str:
        """A token of root's for slurmrestd."""
        said = self.run("scontrol", "token", "username=root", f"lifespan={lifespan_seconds}")
        return said.strip().partition("=")[2]

    # The parts.

    def _write_configuration(self) -> None:
        text = CONFIGURATION.format(**self._fixed, **self._settings)
        draft = self.slurm_conf.with_suffix(".part")
        draft.write_text(text)
        draft.chmod(0o644)
        draft.rename(self.slurm_conf)

    def _start(self, name: str, *command: str, environment: dict[str, str] | None = None) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                env={**self.environment, **(environment or {})},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )

    def _end(self, name: str, number: int) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def _step_daemons(self, node: str) -> list[int]:
        """The slurmstepd processes of a node: they listen on sockets in its spool folder."""
        spool = str(self.folder / "spool" / node) + "/"
        found = []
        for line in Path("/proc/net/unix").read_text().splitlines():
            *_, inode, path = [*line.split()[6:7], line.split()[7] if len(line.split()) > 7 else ""]
            if path.startswith(spool) and inode:
                found.append(inode)
        if not found:
            return []
        return [pid for pid in _slurmstepds() if _holds(pid, set(found))]


def _slurmstepds() -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["name"])
        if (process.info["name"] or "").startswith("slurmstepd")
    ]


def _holds(pid: int, inodes: set[str]) -> bool:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    with contextlib.suppress(OSError):
        return any(str(entry.readlink()) in wanted for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _write_key(path: Path, size: int) -> None:
    path.write_bytes(os.urandom(size))
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
