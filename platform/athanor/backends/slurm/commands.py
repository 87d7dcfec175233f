"""Slurm by its commands: squeue, sbatch, scancel, sacct, scontrol, sacctmgr."""

import re
import secrets
import shlex
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from athanor.backends.base import BackendRejected, BackendUnavailable
from athanor.backends.facts import NodeFacts
from athanor.backends.slurm import listing
from athanor.backends.slurm.client import Client
from athanor.backends.slurm.parse import Job
from athanor.backends.slurm.script import JobRequest, with_options
from athanor.backends.slurm.transport import CommandFailed, Deadline, Transport, document, exports

# The same words whatever the locale, times as seconds since 1970, and no variable that would change a command.
QUIET = "export LC_ALL=C SLURM_TIME_FORMAT=%s\n"
ME = '"$(id -un)"'
ACCOUNTED_AT_ONCE = 500
ACCOUNTED_SECONDS = 5  # slurmdbd may be away while the cluster is not
ACCOUNTED_DAYS = 30
SETTINGS_SECONDS = 300.0  # how long a cluster's own configuration is taken to be as it was

# sbatch's words where the same may succeed later: nobody has decided anything about the job.
PASSING = re.compile(
    r"unable to contact|timed? ?out|communication|connection|temporarily|try again|later|busy|shutting down|"
    r"authentication|credential|zero bytes|not responding|in standby|job submit limit|socket|"
    r"submitted too many|not found|no such file|cannot (fork|allocate)",
    re.IGNORECASE,
)
_settings: dict[str, tuple[float, dict[str, str]]] = {}
_settings_lock = threading.Lock()


class Commands(Client):
    """`slurm_conf`: of a host that knows several clusters."""

    def __init__(self, transport: Transport, slurm_conf: str | None) -> None:
        self.files = transport
        self._transport = transport
        self._head = QUIET + (exports({"SLURM_CONF": slurm_conf}) if slurm_conf else "")
        self._key = repr((transport.command(), slurm_conf))

    @contextmanager
    def jobs(self, deadline: Deadline, name: str | None = None) -> Iterator[Iterator[Job]]:
        chosen = f" --name={shlex.quote(name)}" if name else ""
        program = (
            f"date +%s && squeue --noheader --states=all --user={ME}{chosen} --Format={shlex.quote(listing.FORMAT)}"
        )
        try:
            with self._transport.lines(self._head + program, deadline) as lines:
                yield listing.jobs(lines)
        except CommandFailed as failed:
            raise BackendUnavailable(f"squeue: {failed}") from failed

    def accounted(self, names: Sequence[str], deadline: Deadline) -> Iterable[Job]:
        if not self.has_accounting(deadline):
            return
        for begin in range(0, len(names), ACCOUNTED_AT_ONCE):
            chosen = shlex.quote(",".join(names[begin : begin + ACCOUNTED_AT_ONCE]))
            said = self._ask(
                f"timeout {ACCOUNTED_SECONDS} sacct --noheader --allocations --duplicates --parsable2 --user={ME}"
                f" --starttime=now-{ACCOUNTED_DAYS}days --format={listing.ACCOUNTED} --name={chosen}",
                deadline,
            )
            yield from listing.accounted(said.splitlines())

    def submit(self, asked: JobRequest, variables: Mapping[str, str], deadline: Deadline) -> int:
        mark = f"END-{secrets.token_hex(8)}"
        # sbatch is found before the job's own variables are set: PATH may be one of them.
        program = (
            f'sbatch=$(command -v sbatch)\nunset LC_ALL SLURM_TIME_FORMAT\n{exports(variables)}"$sbatch" --parsable '
            + document(with_options(asked), mark)
        )
        try:
            said = self._transport.run(self._head + program, deadline).decode(errors="replace")
        except CommandFailed as failed:
            if PASSING.search(str(failed)):
                raise BackendUnavailable(f"sbatch: {failed}") from failed
            raise BackendRejected(f"Slurm refused it: {failed}") from failed
        number = said.strip().splitlines()[-1:] or [""]
        found = re.match(r"\d+", number[0])
        if found is None:
            raise BackendUnavailable(f"sbatch gave no job number but {said!r}")
        return int(found[0])

    def cancel(self, name: str, *, force: bool, deadline: Deadline) -> None:
        chosen = f"--quiet --user={ME} --name={shlex.quote(name)}"
        if force:
            # All steps first: scancel alone may leave them to run for as long as KillWait.
            program = f"scancel {chosen} --full --signal=KILL 2>/dev/null; scancel {chosen}"
        else:
            program = f"scancel {chosen} --state=PENDING; scancel {chosen} --signal=TERM --state=RUNNING"
        self._ask(program, deadline)

    def nodes(self, deadline: Deadline) -> list[NodeFacts]:
        said = self._ask("scontrol --details --oneliner show node", deadline)
        tree = self._ask("scontrol --oneliner show topology 2>/dev/null || true", deadline)
        return listing.nodes(said.splitlines(), listing.switches(tree.splitlines()))

    def set_drained(self, node: str, reason: str | None, deadline: Deadline) -> None:
        update = f"scontrol update NodeName={shlex.quote(node)} "
        if reason is not None:
            self._ask(update + f"State=DRAIN Reason={shlex.quote(' '.join(reason.split()) or 'athanor')}", deadline)
            return
        state = self._ask(f"scontrol --oneliner show node {shlex.quote(node)}", deadline)
        if re.search(r" State=\S*DRAIN", state):
            self._ask(update + "State=UNDRAIN || " + update + "State=RESUME", deadline)

    def settings(self, deadline: Deadline) -> dict[str, str]:
        with _settings_lock:
            at, found = _settings.get(self._key, (0.0, {}))
        if not found or time.monotonic() - at > SETTINGS_SECONDS:
            found = listing.settings(self._ask("scontrol show config", deadline).splitlines())
            with _settings_lock:
                _settings[self._key] = (time.monotonic(), found)
        return found

    def token(self, user: str, seconds: int, deadline: Deadline) -> str:
        """A JSON web token for slurmrestd."""
        said = self._ask(f"scontrol token username={shlex.quote(user)} lifespan={seconds}", deadline)
        token = said.strip().partition("SLURM_JWT=")[2]
        if not token:
            raise BackendUnavailable(f"scontrol token gave no token: is AuthAltTypes=auth/jwt set? It said {said!r}")
        return token

    def ensure_accounts(self, accounts: Sequence[str], deadline: Deadline) -> list[str]:
        """Makes accounts, and lets our user charge them; a line for each that was missing."""
        if not self.has_accounting(deadline):
            return []
        said = self._ask(f"sacctmgr --noheader --parsable2 show associations user={ME} format=Account", deadline)
        missing = [account for account in dict.fromkeys(accounts) if account not in said.split()]
        for account in missing:
            name = shlex.quote(account)
            self._ask(
                f"sacctmgr --immediate --quiet add account {name} Description=athanor Organization=athanor;"
                f" sacctmgr --immediate --quiet add user {ME} Account={name}",
                deadline,
            )
        return [f"account {account} was made, and may be charged" for account in missing]

    def has_accounting(self, deadline: Deadline) -> bool:
        return self.settings(deadline).get("AccountingStorageType", "").endswith("slurmdbd")

    def _ask(self, program: str, deadline: Deadline) -> str:
        """For what changes nothing, or may be repeated: whatever goes wrong may be over the next time."""
        try:
            return self._transport.run(self._head + program, deadline).decode(errors="replace")
        except CommandFailed as failed:
            raise BackendUnavailable(f"{program.split()[0]}: {failed}") from failed
