"""The Slurm client by slurmrestd, with a JSON web token. What its version lacks is done by commands on this host.

Version 0.0.38 (Slurm 22.05) takes a job as options of sbatch; later ones take the fields of a job (`later_fields`).
"""

import base64
import json
import re
import shlex
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from athanor.backends.base import BackendRejected, BackendUnavailable
from athanor.backends.facts import NodeFacts
from athanor.backends.slurm import listing, parse
from athanor.backends.slurm.client import SlurmClient
from athanor.backends.slurm.commands import PASSING, CommandClient
from athanor.backends.slurm.config import RestTransport
from athanor.backends.slurm.parse import SlurmJob
from athanor.backends.slurm.script import NAME, JobRequest
from athanor.backends.slurm.transport import CommandFailed, Deadline, LocalShell

MIN_API_VERSION, MAX_API_VERSION = 38, 44  # supported API versions 0.0.N of slurmrestd
ALREADY_DONE = frozenset({2017, 2021})  # no such job; a job that has ended
RETRY_MARGIN = 0.5  # of a token's life
TOKEN_REFUSED = re.compile(r"authentication|credential|token", re.IGNORECASE)

_lock = threading.Lock()
_clients: dict[str, httpx.Client] = {}
_versions: dict[str, int] = {}
_tokens: dict[tuple[str, str], tuple[float, str]] = {}  # when to make another, and the token


class RestClient(SlurmClient):
    """One address of slurmrestd. Connections, its version and the token are shared by all instances."""

    def __init__(self, config: RestTransport, slurm_conf: str | None) -> None:
        self.files = LocalShell()
        self._config = config
        self._commands = CommandClient(self.files, slurm_conf)
        self._url = config.url.rstrip("/")
        with _lock:
            if self._url not in _clients:  # making one loads the machine's certificates: 40 ms
                _clients[self._url] = httpx.Client(timeout=10.0, trust_env=False)
            self._http = _clients[self._url]

    @contextmanager
    def jobs(self, deadline: Deadline, name: str | None = None) -> Iterator[Iterator[SlurmJob]]:
        """Yield the jobs from one streamed listing."""
        now = _number(self._get("diag", deadline).get("statistics", {}).get("req_time"))
        with self._jobs(deadline, name, now) as jobs:
            yield jobs

    @contextmanager
    def _jobs(self, deadline: Deadline, name: str | None, now: float | None = None) -> Iterator[Iterator[SlurmJob]]:
        """Yield the jobs. `now`: the cluster's time; without it durations are unknown."""
        request = self._http.build_request(
            "GET", self._path("jobs", deadline), headers=self._headers(deadline), timeout=deadline.seconds
        )
        try:
            response = self._http.send(request, stream=True)
            try:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    self._check(response)
                records = streamed(response.iter_text(), "jobs")
                yield (
                    job_of(record, now)
                    for record in records
                    if record.get("user_name") == self._config.user
                    and NAME.fullmatch(record.get("name") or "")
                    and name in (None, record["name"])
                )
            finally:
                response.close()
        except (httpx.HTTPError, ValueError) as error:
            raise BackendUnavailable(f"slurmrestd at {self._url}: {error!r}") from error

    def accounted(self, names: Sequence[str], deadline: Deadline) -> Iterable[SlurmJob]:
        """Return what the accounting knows of these names, by the commands of this host."""
        try:
            return list(self._commands.accounted(names, deadline))
        except BackendUnavailable:
            return []  # a host without Slurm's commands knows no accounting

    def submit(self, asked: JobRequest, variables: Mapping[str, str], deadline: Deadline) -> int:
        """Submit a job unless one of this name exists or existed."""
        there = self._existing(asked, deadline)
        if there is not None:
            return there
        version = self._version(deadline)
        job = (fields_of_38 if version == MIN_API_VERSION else later_fields)(asked, variables)
        answer = self._send("POST", "job/submit", deadline, {"script": asked.script, "job": job})
        number = answer.get("job_id")
        if not isinstance(number, int) or not number:
            raise BackendUnavailable(f"slurmrestd gave no job number but {str(answer)[:500]}")
        return number

    def cancel(self, name: str, *, force: bool, deadline: Deadline) -> None:
        """Cancel the live jobs of this name."""
        with self._jobs(deadline, name) as jobs:
            alive = [job for job in jobs if job.is_alive]
        for job in alive:
            signal = "KILL" if force or "PENDING" in job.state else "TERM"
            self._send("DELETE", f"job/{job.number}?signal={signal}", deadline, ignored=ALREADY_DONE)

    def nodes(self, deadline: Deadline) -> list[NodeFacts]:
        """Return the cluster's nodes."""
        return [node_of(record) for record in self._get("nodes", deadline).get("nodes", [])]

    def set_drained(self, node: str, reason: str | None, deadline: Deadline) -> None:
        """Update the node's state; with version 0.0.38 by the commands of this host."""
        if self._version(deadline) == MIN_API_VERSION:
            self._commands.set_drained(node, reason, deadline)
            return
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", node):
            raise BackendUnavailable(f"node {node!r} has no name that Slurm gives")
        if reason is not None:
            self._send("POST", f"node/{node}", deadline, {"state": ["DRAIN"], "reason": reason or "athanor"})
        elif any("DRAIN" in words(record) for record in self._get(f"node/{node}", deadline).get("nodes", [])):
            self._send("POST", f"node/{node}", deadline, {"state": ["RESUME"]})

    def settings(self, deadline: Deadline) -> dict[str, str]:
        """Return the version, and the configuration if the commands of this host give it."""
        release = self._get("ping", deadline).get("meta", {})
        version = next((str(part["release"]) for part in release.values() if "release" in part), "")
        try:
            found = self._commands.settings(deadline)
        except BackendUnavailable:
            found = {}
        return {**found, "SLURM_VERSION": version or found.get("SLURM_VERSION", "")}

    def ensure_accounts(self, accounts: Sequence[str], deadline: Deadline) -> list[str]:
        """Create accounts by the commands of this host."""
        return self._commands.ensure_accounts(accounts, deadline)

    def token_seconds_left(self, deadline: Deadline) -> float | None:
        """Return for how many seconds the current token is valid; None if it does not say."""
        part = self._token(deadline).split(".")[1:2]
        if not part:
            return None
        try:
            claims = json.loads(base64.urlsafe_b64decode(part[0] + "=" * (-len(part[0]) % 4)))
            return float(claims["exp"]) - time.time()
        except (ValueError, KeyError, TypeError):
            return None

    def _existing(self, asked: JobRequest, deadline: Deadline) -> int | None:
        """Return the number of the existing job, as `commands.submitting` finds it; None without one.

        A listing contains the jobs of all users, so it is only requested for a job that was requested before.
        """
        began = shlex.quote(asked.began)
        try:
            output = self.files.run(
                f"if [ -e {began} ]; then echo begun; cat {began}; elif {asked.claim}; then echo new; fi", deadline
            )
        except CommandFailed as failed:
            raise BackendUnavailable(f"cannot read {asked.began}: {failed}") from failed
        said, *number = output.decode(errors="replace").split() or [""]
        if said == "new":
            return None
        with self._jobs(deadline, asked.name) as jobs:
            found = parse.best(jobs, asked.comment)
        if found is not None:
            return found.number
        if said == "begun":
            return int(number[0]) if number and number[0].isdigit() else 0
        if asked.is_replacement:
            return None  # as `commands.submitting`
        return max((job.number for job in self.accounted([asked.name], deadline)), default=None)

    def _version(self, deadline: Deadline) -> int:
        with _lock:
            known = _versions.get(self._url)
        if known is not None:
            return known
        paths = self._answer("GET", f"{self._url}/openapi/v3", deadline).get("paths", {})
        found = {int(match[1]) for path in paths if (match := re.fullmatch(r"/slurm/v0\.0\.(\d+)/jobs/?", path))}
        usable = [number for number in found if MIN_API_VERSION <= number <= MAX_API_VERSION]
        if not usable:
            spoken = ", ".join(f"0.0.{number}" for number in sorted(found)) or "none"
            raise BackendUnavailable(
                f"slurmrestd speaks versions {spoken}; 0.0.{MIN_API_VERSION} to 0.0.{MAX_API_VERSION} are supported"
            )
        with _lock:
            _versions[self._url] = max(usable)
        return max(usable)

    def _path(self, rest: str, deadline: Deadline) -> str:
        return f"{self._url}/slurm/v0.0.{self._version(deadline)}/{rest}"

    def _get(self, rest: str, deadline: Deadline) -> dict[str, Any]:
        return self._answer("GET", self._path(rest, deadline), deadline)

    def _send(
        self, method: str, rest: str, deadline: Deadline, body: Any = None, ignored: frozenset[int] = frozenset()
    ) -> dict[str, Any]:
        return self._answer(method, self._path(rest, deadline), deadline, body, ignored)

    def _answer(
        self, method: str, url: str, deadline: Deadline, body: Any = None, ignored: frozenset[int] = frozenset()
    ) -> dict[str, Any]:
        try:
            response = self._http.request(
                method, url, headers=self._headers(deadline), json=body, timeout=deadline.seconds
            )
        except httpx.HTTPError as error:
            raise BackendUnavailable(f"slurmrestd at {self._url}: {error!r}") from error
        return self._check(response, ignored, submits=url.endswith("/job/submit"))

    def _check(
        self, response: httpx.Response, ignored: frozenset[int] = frozenset(), *, submits: bool = False
    ) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            if response.status_code in (401, 403):
                self._forget_token()
            raise BackendUnavailable(f"slurmrestd at {self._url}: HTTP {response.status_code}")
        errors = [each for each in answer.get("errors") or [] if isinstance(each, dict)]
        numbers = {each.get("error_number", each.get("error_code")) for each in errors}
        if (not errors and response.is_success) or (errors and numbers <= ignored):
            return answer
        message = "; ".join(str(each.get("description") or each.get("error")) for each in errors)
        message = message or f"HTTP {response.status_code}"
        if TOKEN_REFUSED.search(message):
            self._forget_token()
        if submits and errors and not PASSING.search(message):
            raise BackendRejected(f"Slurm refused it: {message}")
        raise BackendUnavailable(f"slurmrestd: {message}")

    def _headers(self, deadline: Deadline) -> dict[str, str]:
        return {"X-SLURM-USER-NAME": self._config.user, "X-SLURM-USER-TOKEN": self._token(deadline)}

    def _token(self, deadline: Deadline) -> str:
        if self._config.token_file is not None:
            try:
                text = Path(self._config.token_file).read_text().strip()
            except OSError as error:
                raise BackendUnavailable(f"cannot read the token of slurmrestd: {error}") from error
            return text.removeprefix("SLURM_JWT=")
        key = (self._url, self._config.user)
        with _lock:
            renew_at, token = _tokens.get(key, (0.0, ""))
        if time.monotonic() >= renew_at:
            asked = time.monotonic()
            token = self._commands.token(self._config.user, self._config.token_seconds, deadline)
            with _lock:
                _tokens[key] = (asked + self._config.token_seconds * RETRY_MARGIN, token)
        return token

    def _forget_token(self) -> None:
        with _lock:
            _tokens.pop((self._url, self._config.user), None)


def fields_of_38(asked: JobRequest, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a job as version 0.0.38 takes it. Raise BackendRejected for what it cannot express."""
    if asked.switches is not None:
        raise BackendRejected(
            "slurmrestd 0.0.38 cannot ask for a number of switches: leave `max_switches` out, or use Slurm's commands"
        )
    values = {
        **_common(asked),
        "nodes": asked.nodes,
        "time_limit": asked.minutes,
        "memory_per_node": asked.memory_mebibytes,
        "gres": asked.gres,
        "constraints": asked.constraint,
        "exclude_nodes": ",".join(asked.exclude) or None,
        "nodelist": asked.only_node,
        "exclusive": "exclusive" if asked.exclusive else None,
        "no_kill": "set" if asked.survives_node_loss else None,
        "signal": f"TERM@{asked.signal_seconds}",
        "no_requeue": True,
        "open_mode": "append",
        "environment": dict(variables),
    }
    return {name: value for name, value in values.items() if value is not None}


def later_fields(asked: JobRequest, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a job as versions after 0.0.38 take it."""
    values = {
        **_common(asked),
        "nodes": str(asked.nodes),
        "time_limit": _set(asked.minutes),
        "memory_per_node": _set(asked.memory_mebibytes),
        "tres_per_node": f"gres/{asked.gres}" if asked.gres else None,
        "constraints": asked.constraint,
        "excluded_nodes": list(asked.exclude) or None,
        "required_nodes": [asked.only_node] if asked.only_node is not None else None,
        "shared": ["none"] if asked.exclusive else None,
        "required_switches": _set(asked.switches),
        "kill_on_node_fail": not asked.survives_node_loss,
        "kill_warning_signal": "TERM",
        "kill_warning_delay": _set(asked.signal_seconds),
        "requeue": False,
        "open_mode": ["APPEND"],
        "environment": [f"{name}={value}" for name, value in variables.items()],
    }
    return {name: value for name, value in values.items() if value is not None}


def _common(asked: JobRequest) -> dict[str, Any]:
    return {
        "name": asked.name,
        "comment": asked.comment,
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "tasks_per_node": 1,
        "cpus_per_task": asked.cpus_per_node,
        "standard_output": asked.output,
        "current_working_directory": "/",
    }


def _set(number: int | None) -> dict[str, Any] | None:
    return None if number is None else {"number": number, "set": True, "infinite": False}


def job_of(record: Mapping[str, Any], now: float | None) -> SlurmJob:
    """Build a job from an entry of `jobs` of any version: numbers are plain, or {"number", "set", "infinite"}."""
    code = record.get("exit_code")
    if isinstance(code, dict):
        status = _number(code.get("return_code"))
        signal = _number((code.get("signal") or {}).get("id", (code.get("signal") or {}).get("signal_id"))) or 0
        ended: tuple[int | None, int] = (None if status is None else int(status), int(signal))
    else:
        ended = parse.wait_status(str(code))
    state = parse.parse_state(record.get("job_state") or "")
    start, end = _number(record.get("start_time")), _number(record.get("end_time"))
    waits = "PENDING" in state
    return SlurmJob(
        number=int(record["job_id"]),
        name=record["name"],
        state=state,
        reason=record.get("state_reason") or "",
        status=ended[0],
        signal=ended[1],
        restarts=int(_number(record.get("restart_cnt")) or 0),
        running_seconds=max(now - start, 0.0) if now and start and not waits else None,
        seconds_left=max(end - now, 0.0) if now and end and not waits else None,
        starts_in_seconds=max(start - now, 0.0) if now and start and waits else None,
        was_preempted=bool(_number(record.get("preempt_time"))),
        nodes=tuple(parse.expand_hostlist(record.get("nodes") or "")),
        comment=record.get("comment") or "",
    )


def words(record: Mapping[str, Any]) -> list[str]:
    """Return the words of a record's state and flags."""
    state = record.get("state") or []
    given = [state] if isinstance(state, str) else list(state)
    return [word.upper() for word in [*given, *(record.get("state_flags") or [])]]


def node_of(record: Mapping[str, Any]) -> NodeFacts:
    """Build a node from an entry of `nodes`."""

    def joined(name: str) -> str:
        value = record.get(name) or ""
        return value if isinstance(value, str) else ",".join(value)

    values = {
        "NodeName": record["name"],
        "State": "+".join(words(record)),
        "Gres": joined("gres"),
        "GresUsed": joined("gres_used"),
        "CPUTot": str(int(_number(record.get("cpus")) or 0)),
        "CPUAlloc": str(int(_number(record.get("alloc_cpus")) or 0)),
        "RealMemory": str(int(_number(record.get("real_memory")) or 0)),
        "Partitions": joined("partitions"),
        "ActiveFeatures": joined("active_features") or "(null)",
    }
    return listing.node(values, record.get("reason") or "", ())


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return float(value) if isinstance(value, int | float) else None


def streamed(parts: Iterable[str], name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the array `name` in a JSON text one by one as it arrives, with constant memory."""
    decoder = json.JSONDecoder()
    found, buffer = False, ""
    for part in parts:
        buffer += part
        if not found:
            match = re.search(rf'"{name}"\s*:\s*\[', buffer)
            if match is None:
                continue
            found, buffer = True, buffer[match.end() :]
        while True:
            buffer = buffer.lstrip(" \t\r\n,")
            if buffer.startswith("]"):
                return
            try:
                record, end = decoder.raw_decode(buffer)
            except ValueError:
                break  # cut off; more comes
            yield record
            buffer = buffer[end:]
    raise ValueError(f"the answer ended within {name!r}")
