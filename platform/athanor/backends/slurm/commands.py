"""The Slurm client by commands: squeue, sbatch, scancel, sacct, scontrol, sacctmgr."""

import re
import secrets
import shlex
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from athanor.backends.base import BackendRejected, BackendUnavailable
from athanor.backends.facts import NodeFacts
from athanor.backends.slurm import listing, parse
from athanor.backends.slurm.client import SlurmClient
from athanor.backends.slurm.parse import SlurmJob
from athanor.backends.slurm.script import JobRequest, with_options
from athanor.backends.slurm.transport import CommandFailed, Deadline, Transport, document, exports

# The same words whatever the locale, times as seconds since 1970, and no variable that would change a command.
QUIET = "export LC_ALL=C SLURM_TIME_FORMAT=%s\n"
ME = '"$(id -un)"'
MAX_NAMES_PER_SACCT = 500
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
REFUSED = 76  # of the program that submits: sbatch itself gave no job
_settings: dict[str, tuple[float, dict[str, str]]] = {}
_settings_lock = threading.Lock()


class CommandClient(SlurmClient):
    """Slurm's commands by a transport. `slurm_conf`: needed on a host that knows several clusters."""

    def __init__(self, transport: Transport, slurm_conf: str | None) -> None:
        self.files = transport
        self._transport = transport
        self._head = QUIET + (exports({"SLURM_CONF": slurm_conf}) if slurm_conf else "")
        self._key = repr((transport.command(), slurm_conf))

    @contextmanager
    def jobs(self, deadline: Deadline, name: str | None = None) -> Iterator[Iterator[SlurmJob]]:
        """Run squeue, and read its output as it arrives."""
        try:
            with self._transport.lines(f"{self._head}date +%s && {_squeue(name)}", deadline) as lines:
                yield listing.jobs(lines)
        except CommandFailed as failed:
            raise BackendUnavailable(f"squeue: {failed}") from failed

    def accounted(self, names: Sequence[str], deadline: Deadline) -> Iterable[SlurmJob]:
        """Run sacct for these names, if there is accounting."""
        if not self.has_accounting(deadline):
            return
        for begin in range(0, len(names), MAX_NAMES_PER_SACCT):
            chosen = shlex.quote(",".join(names[begin : begin + MAX_NAMES_PER_SACCT]))
            said = self._ask(_sacct(chosen), deadline)
            yield from listing.accounted(said.splitlines())

    def submit(self, asked: JobRequest, variables: Mapping[str, str], deadline: Deadline) -> int:
        """Submit with one shell program that first looks for the job: one round trip instead of several."""
        mark = f"END-{secrets.token_hex(8)}"
        program = submitting(asked, variables, mark, with_accounting=self.has_accounting(deadline))
        try:
            said = self._transport.run(self._head + program, deadline).decode(errors="replace")
        except CommandFailed as failed:
            message = str(failed).rpartition(mark)[2].strip() or "it did not say why"
            if failed.status != REFUSED:
                raise BackendUnavailable(f"looking for {asked.name}: {message}") from failed
            if PASSING.search(message):
                raise BackendUnavailable(f"sbatch: {message}") from failed
            raise BackendRejected(f"Slurm refused it: {message}") from failed
        number = _number(said.partition(f"{mark} ")[2], asked.comment)
        if number is None:
            raise BackendUnavailable(f"submitting {asked.name} gave no job number but {said!r}")
        return number

    def cancel(self, name: str, *, force: bool, deadline: Deadline) -> None:
        """Run scancel."""
        chosen = f"--quiet --user={ME} --name={shlex.quote(name)}"
        if force:
            # All steps first: scancel alone may leave them to run for as long as KillWait.
            program = f"scancel {chosen} --full --signal=KILL 2>/dev/null; scancel {chosen}"
        else:
            program = f"scancel {chosen} --state=PENDING; scancel {chosen} --signal=TERM --state=RUNNING"
        self._ask(program, deadline)

    def nodes(self, deadline: Deadline) -> list[NodeFacts]:
        """Run scontrol for the nodes and the topology."""
        said = self._ask("scontrol --details --oneliner show node", deadline)
        tree = self._ask("scontrol --oneliner show topology 2>/dev/null || true", deadline)
        return listing.nodes(said.splitlines(), listing.switches(tree.splitlines()))

    def set_drained(self, node: str, reason: str | None, deadline: Deadline) -> None:
        """Run scontrol update. Undrains only nodes that are drained."""
        update = f"scontrol update NodeName={shlex.quote(node)} "
        if reason is not None:
            self._ask(update + f"State=DRAIN Reason={shlex.quote(' '.join(reason.split()) or 'athanor')}", deadline)
            return
        state = self._ask(f"scontrol --oneliner show node {shlex.quote(node)}", deadline)
        if re.search(r" State=\S*DRAIN", state):
            self._ask(update + "State=UNDRAIN || " + update + "State=RESUME", deadline)

    def settings(self, deadline: Deadline) -> dict[str, str]:
        """Return the configuration, cached for SETTINGS_SECONDS."""
        with _settings_lock:
            at, found = _settings.get(self._key, (0.0, {}))
        if not found or time.monotonic() - at > SETTINGS_SECONDS:
            found = listing.settings(self._ask("scontrol show config", deadline).splitlines())
            with _settings_lock:
                _settings[self._key] = (time.monotonic(), found)
        return found

    def token(self, user: str, seconds: int, deadline: Deadline) -> str:
        """Return a JSON web token for slurmrestd."""
        said = self._ask(f"scontrol token username={shlex.quote(user)} lifespan={seconds}", deadline)
        token = said.strip().partition("SLURM_JWT=")[2]
        if not token:
            raise BackendUnavailable(f"scontrol token gave no token: is AuthAltTypes=auth/jwt set? It said {said!r}")
        return token

    def ensure_accounts(self, accounts: Sequence[str], deadline: Deadline) -> list[str]:
        """Run sacctmgr for each missing account."""
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
        """Return whether slurmdbd does the accounting."""
        return self.settings(deadline).get("AccountingStorageType", "").endswith("slurmdbd")

    def _ask(self, program: str, deadline: Deadline) -> str:
        """Run a program that changes nothing or may be repeated. Every failure is BackendUnavailable."""
        try:
            return self._transport.run(self._head + program, deadline).decode(errors="replace")
        except CommandFailed as failed:
            raise BackendUnavailable(f"{program.split()[0]}: {failed}") from failed


def submitting(asked: JobRequest, variables: Mapping[str, str], mark: str, *, with_accounting: bool) -> str:
    """Return the shell program that looks for a job of this name, and submits it if there is none.

    A job that was never requested before is not looked for: squeue lists all our jobs, which takes longer the more
    there are.

    The program prints `mark` and what answered ("squeue", "begun", "sacct" or "sbatch"), and on the next lines its
    output. It exits with REFUSED, after `mark` on a line before sbatch's own message, if sbatch did not create a job;
    with any other status if it could not be determined whether there is a job. The shell parses the group to its end
    before it runs any of it, so a program that is cut off by a lost connection does nothing.
    """
    named, began = shlex.quote(f"|{asked.name}|"), shlex.quote(asked.began)
    # All jobs of an attempt have one name. The accounting may know no comments, so all that it knows count as the
    # attempt's own: a replacement that never began, and that squeue does not list any more, is requested again.
    others = f"sed -n '/|{asked.comment}|$/p'" if asked.is_replacement else f"sed '/|{asked.comment}:[0-9.]*|$/d'"
    ours = f'found=$(printf "%s\\n" "$found" | {others})\n'

    def _known_job(kind: str, command: str, chosen: str = "") -> str:
        return (
            f"found=$({command}) || exit 1\n{chosen}"
            f"""case $found in *{named}*) printf '%s\\n' '{mark} {kind}' "$found"; exit 0;; esac\n"""
        )

    return (
        f"{{\nif [ -e {began} ] || ! {asked.claim}; then\n"
        + _known_job("squeue", _squeue(asked.name), ours)
        + f"if [ -e {began} ]; then\n    found=$(cat {began}) || exit 1\n"
        + f"""    printf '%s\\n' '{mark} begun' "$found"\n    exit 0\nfi\n"""
        + (_known_job("sacct", _sacct(shlex.quote(asked.name))) if with_accounting and not asked.is_replacement else "")
        # sbatch is found before the job's own variables are set: PATH may be one of them. It is no variable itself.
        + 'fi\nset -- "$(command -v sbatch)"\n[ -n "$1" ] || { echo \'sbatch: not found\' >&2; exit 1; }\n'
        + f"echo '{mark} sbatch'\necho {mark} >&2\nunset LC_ALL SLURM_TIME_FORMAT\n{exports(variables)}"
        + f'"$1" --parsable {document(with_options(asked), mark)}status=$?\n'
        # Ended by a signal, it may have made one.
        + f"[ $status -le 128 ] || exit 1\n[ $status -eq 0 ] || exit {REFUSED}\n}}\n"
    )


def _number(answer: str, comment: str) -> int | None:
    """Return the job number from the output of `submitting`; 0 if it ran and its number is no longer known."""
    kind, _, said = answer.partition("\n")
    lines = said.strip().splitlines()
    if kind == "begun":
        return int(lines[0]) if len(lines) == 1 and lines[0].isdigit() else 0
    if kind == "sbatch":
        found = re.match(r"\d+", (lines or [""])[-1])
        return int(found[0]) if found else None
    if kind == "squeue":
        job = parse.best(listing.jobs(line.encode() for line in lines), comment)
        return job.number if job else None
    return max((job.number for job in listing.accounted(lines)), default=None)


def _squeue(name: str | None) -> str:
    """Return the command that lists the jobs of our user, ended or not; with `name`, only those of this name."""
    chosen = f" --name={shlex.quote(name)}" if name else ""
    return f"squeue --noheader --states=all --user={ME}{chosen} --Format={shlex.quote(listing.FORMAT)}"


def _sacct(names: str) -> str:
    """Return the command that lists accounted jobs. `names` must be quoted for the shell."""
    return (
        f"timeout {ACCOUNTED_SECONDS} sacct --noheader --allocations --duplicates --parsable2 --user={ME}"
        f" --starttime=now-{ACCOUNTED_DAYS}days --format={listing.ACCOUNTED} --name={names}"
    )
