"""The agent API over HTTP: the only thing on a node that talks to the platform."""

import random
import threading
import time
from typing import Any

import httpx
from pydantic import BaseModel

from trainer.client.platform import AttemptOver, SequenceGap
from trainer.contract.manifest import CheckpointManifest, DatasetManifest, ModelManifest, ProfileManifest
from trainer.contract.node_rendezvous import Join, Place
from trainer.contract.run import (
    AttemptEnd,
    Batch,
    BatchReply,
    DataKeys,
    EndClass,
    Heartbeat,
    HeartbeatReply,
    PresignReply,
    PresignRequest,
    RunConfig,
)
from trainer.errors import TrainerError

_ATTEMPT_OVER = {401, 403, 410}
_LONGEST_PAUSE = 10.0
_NOT_AUTHENTIC = "manifest_not_authentic"  # the problem's code: what is stored is not what was registered


class PlatformClient:
    """Retries what can pass by itself (connection errors, 429, 5xx), never a refusal (other 4xx)."""

    def __init__(self, base_url: str, token: str, *, patience_seconds: float = 300.0) -> None:
        """`patience_seconds` bounds the retries of one call that the run cannot go on without."""
        self._patience = patience_seconds
        self._wait = threading.Event().wait
        self._http = httpx.Client(
            base_url=base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(30.0, connect=5.0),
            trust_env=False,  # the platform's address is explicit; a proxy variable must not reroute a token
        )

    def run(self) -> RunConfig:
        """Return the configuration of the attempt."""
        return RunConfig.model_validate_json(self._call("GET", "/run").content)

    def keys(self) -> DataKeys:
        """Return the data keys of the job and of the data it reads."""
        return DataKeys.model_validate_json(self._call("GET", "/keys").content)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """One try: the next beat is the retry. Raises httpx.HTTPError, AttemptOver."""
        return HeartbeatReply.model_validate_json(self._once("POST", "/heartbeat", heartbeat).content)

    def rendezvous(self, join: Join) -> Place:
        """Join a rendezvous round. Return this node's place."""
        return Place.model_validate_json(self._call("POST", "/rendezvous", join).content)

    def deliver(self, kind: str, batch: Batch) -> BatchReply:
        """One try; `kind` is metrics, logs or progress. Raises httpx.HTTPError, SequenceGap, AttemptOver."""
        try:
            return BatchReply.model_validate_json(self._once("POST", f"/{kind}", batch).content)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
            raise SequenceGap(int(error.response.json()["next_sequence"])) from error

    def presign(self, operation: str, keys: list[str]) -> PresignReply:
        """Return a URL for each key. `operation`: get or put."""
        request = PresignRequest.model_validate({"operation": operation, "keys": keys})
        return PresignReply.model_validate_json(self._call("POST", "/storage:presign", request).content)

    def register_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Register a stored checkpoint."""
        self._call("POST", "/checkpoints", manifest)

    def register_model(self, manifest: ModelManifest) -> None:
        """Register a stored model."""
        self._call("POST", "/artifacts", manifest)

    def register_dataset(self, manifest: DatasetManifest) -> None:
        """Register a prepared data set."""
        self._call("POST", "/datasets", manifest)

    def register_profile(self, manifest: ProfileManifest) -> None:
        """Register a stored profile."""
        self._call("POST", "/profiles", manifest)

    def end(self, end: AttemptEnd) -> None:
        """Report the end of the attempt."""
        self._call("POST", "/end", end)

    def _call(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        deadline = time.monotonic() + self._patience
        pause = 0.1
        while True:
            try:
                return self._once(method, path, body)
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
                    raise TrainerError(*_refusal(method, path, error.response)) from error
                problem: httpx.HTTPError = error
            except httpx.TransportError as error:
                problem = error
            if time.monotonic() + pause > deadline:
                raise TrainerError(
                    EndClass.PLATFORM_UNREACHABLE,
                    f"{method} {path} has failed for {self._patience:.0f} s ({problem}); check that the platform is up "
                    "and reachable from the nodes",
                ) from problem
            self._wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _once(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        content = None if body is None else body.model_dump_json()
        headers = {} if body is None else {"Content-Type": "application/json"}
        response = self._http.request(method, path, content=content, headers=headers)
        if response.status_code in _ATTEMPT_OVER:
            raise AttemptOver(EndClass.STOPPED, f"the platform has ended this attempt (HTTP {response.status_code})")
        return response.raise_for_status()


def _refusal(method: str, path: str, response: httpx.Response) -> tuple[EndClass, str]:
    """Return what the refusal means for the run, and a sentence."""
    detail: Any = response.text[:500]
    end_class = EndClass.STORAGE_ERROR if _NOT_AUTHENTIC in response.text else EndClass.INTERNAL_ERROR
    return end_class, f"{method} {path} was refused with HTTP {response.status_code}: {detail}"
