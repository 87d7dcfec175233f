"""The Slurm backend: batch jobs of a cluster, each named after its attempt."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from athanor.backends.base import (
    LOG_PART_BYTES,
    Backend,
    BackendUnavailable,
    ChecksHealth,
    DrainsNodes,
    Handle,
    ListsNodes,
    ListsOurs,
    LogPart,
    Observation,
    Presence,
    ReplacesNodes,
    Submission,
    SyncsTeams,
    byte_cursor,
    log_part,
)
from athanor.backends.facts import HealthCheck, NodeFacts
from athanor.backends.plan import LaunchPlan
from athanor.backends.slurm import health_check, parse, script
from athanor.backends.slurm.client import SlurmClient
from athanor.backends.slurm.commands import CommandClient
from athanor.backends.slurm.config import RestTransport, SlurmConfig
from athanor.backends.slurm.parse import SlurmJob
from athanor.backends.slurm.rest import RestClient
from athanor.backends.slurm.transport import CommandFailed, Deadline, document, open_transport

MARK = "END-OF-NAMES"


class SlurmBackend(Backend, ListsOurs, ChecksHealth, ListsNodes, DrainsNodes, ReplacesNodes, SyncsTeams):
    """Runs each attempt as a batch job. Keyword arguments: the fields of SlurmConfig."""

    configuration: ClassVar[type[BaseModel]] = SlurmConfig

    def __init__(self, **config: Any) -> None:
        self.config = SlurmConfig(**config)
        self.client = _client(self.config)
        self._logs = self.config.log_directory.rstrip("/")

    def render(self, plan: LaunchPlan) -> Submission:
        """Return the batch script and its options. Raise BackendRejected for what Slurm cannot be asked for."""
        return self._submission(plan, script.request(self.config, plan))

    def render_replacement(self, plan: LaunchPlan, node_index: int, number: int) -> Submission:
        """Return a batch job of one node that runs the agent of this index."""
        return self._submission(plan, script.replacement(self.config, plan, node_index, number))

    def _submission(self, plan: LaunchPlan, asked: script.JobRequest) -> Submission:
        environment = {
            **self.config.profile.variables(plan.accelerator, plan.nodes + plan.spare_nodes),
            **plan.environment,
        }
        script.check_variables({**environment, **plan.secrets})
        text = script.shown(asked, environment, plan.secrets)
        return Submission(plan.backend_name, text, environment, plan.secrets, asked)

    def submit(self, submission: Submission) -> Handle:
        """Submit the batch job, or adopt the one that exists."""
        assert isinstance(submission.payload, script.JobRequest)
        variables = {**submission.environment, **submission.secrets}
        number = self.client.submit(submission.payload, variables, Deadline())
        return Handle(submission.backend_name, str(number))

    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """Observe all attempts with one listing; ask for those that Slurm has forgotten by name."""
        if not handles:
            return {}
        deadline = Deadline()
        by_name = {handle.backend_name: handle for handle in handles}
        found: dict[str, SlurmJob] = {}
        replacements: dict[str, list[SlurmJob]] = {}
        with self.client.jobs(deadline, handles[0].backend_name if len(handles) == 1 else None) as jobs:
            for job in jobs:
                if job.name in by_name and job.replaces:
                    replacements.setdefault(job.name, []).append(job)
                elif job.name in by_name:
                    found[job.name] = parse.pick_attempt_job(job, found.get(job.name), by_name[job.name].backend_id)
        answers = {by_name[name]: parse.to_observation(job) for name, job in found.items()}
        missing = {name: handle for name, handle in by_name.items() if name not in found}
        if missing:
            answers.update({by_name[name]: answer for name, answer in self._forgotten(missing, deadline)})
        return {
            handle: parse.with_replacements(answer, replacements.get(handle.backend_name, []))
            for handle, answer in answers.items()
        }

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Cancel the attempt's jobs."""
        self.client.cancel(handle.backend_name, force=force, deadline=Deadline())

    def logs(self, handle: Handle, cursor: str | None = None) -> LogPart:
        """Read the attempt's log from a byte offset."""
        begin = byte_cursor(cursor)
        file = shlex.quote(f"{self._logs}/{handle.backend_name}.log")
        program = f"[ ! -e {file} ] || tail -c +{begin + 1} {file} | head -c {LOG_PART_BYTES}"
        return log_part(self._read(program, Deadline()), begin)

    def list_ours(self) -> frozenset[str]:
        """Return the names of our live jobs."""
        with self.client.jobs(Deadline()) as jobs:
            return frozenset(job.name for job in jobs if job.is_alive)

    def nodes(self) -> list[NodeFacts]:
        """Return the cluster's nodes."""
        return self.client.nodes(Deadline())

    def drain(self, node: str, reason: str) -> None:
        """Drain a node."""
        self.client.set_drained(node, reason, Deadline())

    def undrain(self, node: str) -> None:
        """Undrain a node."""
        self.client.set_drained(node, None, Deadline())

    def check_health(self) -> HealthCheck:
        """Check the cluster and its configuration for our jobs."""
        return health_check.check_health(self.config, self.client)

    def sync_teams(self, teams: Sequence[str]) -> list[str]:
        """Create accounts with sacctmgr; nothing if the cluster has no accounting."""
        accounts = [script.account_of(self.config, team) for team in teams]
        return self.client.ensure_accounts([account for account in accounts if account], Deadline())

    def _forgotten(self, handles: Mapping[str, Handle], deadline: Deadline) -> Iterator[tuple[str, Observation]]:
        """Yield observations of jobs that Slurm has forgotten, by their NAME.end or by the accounting."""
        left = dict(handles)
        listed = "\n".join(name for name in handles if script.NAME.fullmatch(name))
        program = (
            f"cd {shlex.quote(self._logs)} || exit 1\n"
            'while read -r name; do [ ! -e "$name.end" ] || echo "$name $(cat "$name.end")"; done '
        )
        try:
            said = self._read(program + document(listed, MARK), deadline).decode(errors="replace")
        except BackendUnavailable as error:
            # Not to find the folder is not to find that nothing ended.
            yield from ((name, Observation(Presence.UNKNOWN, native_reason=str(error))) for name in handles)
            return
        for line in said.splitlines():
            name, _, rest = line.partition(" ")
            status = rest.partition(" ")[0]
            if name in left and status.isdigit():
                del left[name]
                yield name, Observation(
                    Presence.FINISHED, "forgotten", exit_status=parse.exit_status(int(status)),
                    explanation="Slurm does not know it any more; it wrote down its end.",
                )  # fmt: skip
        found: dict[str, SlurmJob] = {}
        for job in self.client.accounted(list(left), deadline) if left else ():
            # Jobs that replace lost nodes were begun after the attempt's own, and have higher numbers.
            found[job.name] = parse.pick_attempt_job(job, found.get(job.name), left[job.name].backend_id)
        for name in left:
            yield name, parse.to_observation(found[name]) if name in found else Observation(Presence.ABSENT)

    def _read(self, program: str, deadline: Deadline) -> bytes:
        try:
            return self.client.files.run(program, deadline)
        except CommandFailed as failed:
            raise BackendUnavailable(f"cannot read {self._logs}: {failed}") from failed


def _client(config: SlurmConfig) -> SlurmClient:
    if isinstance(config.transport, RestTransport):
        return RestClient(config.transport, config.slurm_conf)
    return CommandClient(open_transport(config.transport), config.slurm_conf)
