"""The REST client of the agent API: the only module on a node that sends requests to the platform."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from trainer.client.platform import AttemptOver, PreparationLost, SequenceGap
from trainer.contract.evaluation import EvaluationResults
from trainer.contract.manifest import (
    CheckpointId,
    CheckpointManifest,
    DataReportManifest,
    ModelManifest,
    ProfileManifest,
)
from trainer.contract.node_rendezvous import JoinReply, JoinRequest
from trainer.contract.replay import ReplayResult
from trainer.contract.rollback import Rollback, RollbackReply, RollbackRequest
from trainer.contract.run import (
    AttemptEnd,
    Batch,
    BatchReply,
    DamagedCheckpoint,
    DataKeys,
    EndClass,
    Heartbeat,
    HeartbeatReply,
    PreparationRegistration,
    PreparationRelease,
    PreparationReply,
    PreparationRequest,
    PresignReply,
    PresignRequest,
    RunConfig,
)
from trainer.errors import TrainerError

Result = TypeVar("Result")

_ATTEMPT_OVER_STATUS = {401, 403, 410}
_MAX_PAUSE_SECONDS = 10.0
_LOST = "preparation_lost"  # code of the problem
# By code of the problem: what is stored is not what was registered; all checkpoints are damaged.
_END_CLASSES = {
    "manifest_not_authentic": EndClass.STORAGE_ERROR,
    "no_intact_checkpoint": EndClass.CHECKPOINT_DAMAGED,
    "base_not_found": EndClass.BAD_SPEC,
}


class PlatformClient:
    """Call the agent API with an attempt's token.

    Every call raises AttemptOver for the statuses 401, 403 and 410. `heartbeat` and `deliver` send one request and
    raise httpx.HTTPError for any other failure. All other calls retry connection errors, 429 and 5xx, with growing
    pauses of at most 10 s, and raise TrainerError: PLATFORM_UNREACHABLE when `retry_seconds` have passed; for any other
    4xx, without a retry, STORAGE_ERROR if a manifest is not authentic, CHECKPOINT_DAMAGED if no checkpoint can be read,
    BAD_SPEC if the base model is not shared with the team any more, else INTERNAL_ERROR.
    """

    def __init__(self, base_url: str, token: str, *, retry_seconds: float = 300.0) -> None:
        """Create the client. `retry_seconds`: how long a call that is retried may fail."""
        self._retry_seconds = retry_seconds
        self._wait = threading.Event().wait
        self._http = httpx.Client(
            base_url=base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(30.0, connect=5.0),
            trust_env=False,  # the platform's address is explicit; a proxy variable must not reroute a token
        )

    def run(self) -> RunConfig:
        """Return the configuration of the attempt."""
        return RunConfig.model_validate_json(self._request_with_retries("GET", "/run").content)

    def keys(self) -> DataKeys:
        """Return the data keys of the job and of the data it reads."""
        return DataKeys.model_validate_json(self._request_with_retries("GET", "/keys").content)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Send a heartbeat, without retries: the next heartbeat follows soon. Raises httpx.HTTPError, AttemptOver."""
        return HeartbeatReply.model_validate_json(self._request("POST", "/heartbeat", heartbeat).content)

    def rendezvous(self, join: JoinRequest, is_ended: Callable[[], bool]) -> JoinReply | None:
        """Join a rendezvous round. Return None if `is_ended` became true while the platform held the reply."""
        content = self._with_retries("POST", "/rendezvous", lambda: self._long_poll("/rendezvous", join, is_ended))
        return None if content is None else JoinReply.model_validate_json(content)

    def checkpoint(self, checkpoint: CheckpointId) -> CheckpointManifest:
        """Return the manifest of a checkpoint of the job."""
        content = self._request_with_retries("POST", "/checkpoints:read", checkpoint).content
        return CheckpointManifest.model_validate_json(content)

    def deliver(self, kind: str, batch: Batch) -> BatchReply:
        """Send a batch, without retries. `kind`: metrics, logs, progress or system.

        Raises SequenceGap for a 409, httpx.HTTPError, AttemptOver.
        """
        try:
            return BatchReply.model_validate_json(self._request("POST", f"/{kind}", batch).content)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
            raise SequenceGap(int(error.response.json()["next_sequence"])) from error

    def presign(self, operation: str, keys: list[str]) -> PresignReply:
        """Return a URL for each key. `operation`: get or put."""
        request = PresignRequest.model_validate({"operation": operation, "keys": keys})
        return PresignReply.model_validate_json(self._request_with_retries("POST", "/storage:presign", request).content)

    def register_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Register a stored checkpoint."""
        self._request_with_retries("POST", "/checkpoints", manifest)

    def report_damaged(self, checkpoint: DamagedCheckpoint) -> None:
        """Report a checkpoint that cannot be read."""
        self._request_with_retries("POST", "/checkpoints:damaged", checkpoint)

    def roll_back(self, request: RollbackRequest) -> Rollback | None:
        """Go back to an earlier checkpoint. Return None if there is none."""
        content = self._request_with_retries("POST", "/rollbacks", request).content
        return RollbackReply.model_validate_json(content).rollback

    def register_model(self, manifest: ModelManifest) -> None:
        """Register a stored model."""
        self._request_with_retries("POST", "/artifacts", manifest)

    def register_evaluation(self, results: EvaluationResults) -> None:
        """Register the results of an evaluation job."""
        self._request_with_retries("POST", "/evaluations", results)

    def register_replay(self, result: ReplayResult) -> None:
        """Register the result of a segment of a replay."""
        self._request_with_retries("POST", "/replays", result)

    def claim_preparation(self, request: PreparationRequest) -> PreparationReply:
        """Ask to prepare a data set, or renew that."""
        content = self._request_with_retries("POST", "/preparations:claim", request).content
        return PreparationReply.model_validate_json(content)

    def release_preparation(self, release: PreparationRelease) -> None:
        """Give up a preparation, without retries: its lease expires soon anyway."""
        with suppress(httpx.HTTPError, AttemptOver):
            self._request("POST", "/preparations:release", release)

    def register_dataset(self, registration: PreparationRegistration) -> None:
        """Register a prepared data set. Raises PreparationLost."""
        self._request_with_retries("POST", "/preparations:register", registration)

    def register_report(self, manifest: DataReportManifest) -> None:
        """Register a stored data report."""
        self._request_with_retries("POST", "/data-reports", manifest)

    def register_profile(self, manifest: ProfileManifest) -> None:
        """Register a stored profile."""
        self._request_with_retries("POST", "/profiles", manifest)

    def end(self, end: AttemptEnd) -> None:
        """Report the end of the attempt."""
        self._request_with_retries("POST", "/end", end)

    def _request_with_retries(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        return self._with_retries(method, path, lambda: self._request(method, path, body))

    def _with_retries(self, method: str, path: str, request: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + self._retry_seconds
        pause = 0.1
        while True:
            try:
                return request()
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
                    raise _client_error(method, path, error.response) from error
                problem: httpx.HTTPError = error
            except httpx.TransportError as error:
                problem = error
            if time.monotonic() + pause > deadline:
                raise TrainerError(
                    EndClass.PLATFORM_UNREACHABLE,
                    f"{method} {path} has failed for {self._retry_seconds:.0f} s ({problem}); check that the platform "
                    "is up and reachable from the nodes",
                ) from problem
            self._wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def _request(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        return _check(self._http.request(method, path, **_encode(body)))

    def _long_poll(self, path: str, body: BaseModel, is_ended: Callable[[], bool]) -> bytes | None:
        """Return the body of a response that the platform holds, sending spaces; None if `is_ended` became true."""
        with self._http.stream("POST", path, **_encode(body)) as response:
            if response.is_error:
                response.read()
            _check(response)
            pieces = []
            for piece in response.iter_bytes():
                if is_ended():
                    return None
                pieces.append(piece)
        return b"".join(pieces)


def _encode(body: BaseModel | None) -> dict[str, Any]:
    if body is None:
        return {}
    return {"content": body.model_dump_json(), "headers": {"Content-Type": "application/json"}}


def _check(response: httpx.Response) -> httpx.Response:
    if response.status_code in _ATTEMPT_OVER_STATUS:
        raise AttemptOver(
            EndClass.STOPPED, f"the platform no longer accepts this attempt (HTTP {response.status_code})"
        )
    return response.raise_for_status()


def _client_error(method: str, path: str, response: httpx.Response) -> TrainerError:
    """Return the error that ends the run when the platform refuses a request."""
    found = (end_class for code, end_class in _END_CLASSES.items() if code in response.text)
    end_class = next(found, EndClass.INTERNAL_ERROR)
    kind = PreparationLost if _LOST in response.text else TrainerError
    return kind(end_class, f"{method} {path} was refused with HTTP {response.status_code}: {response.text[:500]}")
