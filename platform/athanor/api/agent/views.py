"""Views for compute nodes: parse a message of the contract, call one service, render."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.agent import long_polls
from athanor.api.agent.messages import parse_message
from athanor.artifacts import (
    base_models,
    checkpoint_states,
    data_reports,
    evaluations,
    keys,
    preparations,
    profiles,
    replays,
    services,
    storage,
    team_secrets,
)
from athanor.core import tenancy
from athanor.core.errors import Unauthenticated
from athanor.core.logging import bound
from athanor.dispatch import rendezvous_rounds, tokens
from athanor.dispatch.services import interrupted, record_end, run_config_of, spec_of, stop_request_of
from athanor.jobs.models import Attempt
from athanor.telemetry import ingest
from trainer.contract.evaluation import EvaluationResults
from trainer.contract.manifest import (
    CheckpointId,
    CheckpointManifest,
    DataReportManifest,
    DatasetManifest,
    ModelManifest,
    ProfileManifest,
)
from trainer.contract.node_rendezvous import JoinRequest
from trainer.contract.replay import ReplayResult
from trainer.contract.rollback import RollbackReply, RollbackRequest
from trainer.contract.run import (
    AttemptEnd,
    Batch,
    BatchReply,
    DamagedCheckpoint,
    DataKeys,
    Heartbeat,
    HeartbeatReply,
    PreparationRegistration,
    PreparationRelease,
    PreparationRequest,
    PresignedUrl,
    PresignReply,
    PresignRequest,
)


class AttemptAuthentication(BaseAuthentication):
    """`Authorization: Bearer att_...`, valid until the attempt has ended."""

    def authenticate(self, request: Request) -> tuple[None, Attempt]:
        """Return the attempt of the token, and limit the database session to its team. Raises Unauthenticated."""
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise Unauthenticated("token_missing", "an attempt's token is needed", remedy="send it as a bearer token")
        tenancy.see_all()  # until the team of the attempt is known
        theirs = []
        try:
            attempt = tokens.recognise(secret.strip())
            theirs.append(attempt.job.team_id)
        finally:
            tenancy.restrict(theirs)
        return None, attempt

    def authenticate_header(self, request: Request) -> str:
        """Return the scheme for WWW-Authenticate."""
        return "Bearer"


class HasAttempt(BasePermission):
    """Allows requests that an attempt's token authenticates."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether an attempt makes the request."""
        return isinstance(request.auth, Attempt)


@extend_schema(exclude=True)
class AgentView(APIView):
    """Base of the views for compute nodes: authenticated by an attempt's token, without a rate limit."""

    authentication_classes = (AttemptAuthentication,)
    permission_classes = (HasAttempt,)
    throttle_classes = ()

    def attempt(self, request: Request) -> Attempt:
        """Return the attempt that makes the request."""
        assert isinstance(request.auth, Attempt)
        return request.auth

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle the request with the id of the attempt bound to its log lines."""
        attempt_id = request.headers.get("Authorization", "").removeprefix("Bearer ").partition(".")[0]
        with bound(attempt=attempt_id[:40]):
            return super().dispatch(request, *args, **kwargs)


class RunView(AgentView):
    """Requests to `/run`."""

    def get(self, request: Request) -> Response:
        """Return the configuration of the run."""
        return Response(run_config_of(self.attempt(request)).model_dump(mode="json"))


class KeysView(AgentView):
    """Requests to `/keys`."""

    def get(self, request: Request) -> Response:
        """Return the data keys of the job, its data sets, its base model and the job that it replays, and its
        secrets."""
        job = self.attempt(request).job
        first, *others = job.dataset_ids
        spec = spec_of(job)
        others += [row.id for row in data_reports.compared_rows(job.team, spec)]
        answer = DataKeys(
            job=keys.data_key(job.id, job.team),
            dataset=keys.data_key(first, job.team),
            more_datasets={dataset_id: keys.data_key(dataset_id, job.team) for dataset_id in others},
            base=base_models.key_of(job.team, spec.base),
            replayed=keys.data_key(spec.source_job, job.team) if spec.source_job else "",
            secrets=team_secrets.deliver(job),
        )
        return Response(answer.model_dump(mode="json"))


class HeartbeatView(AgentView):
    """Requests to `/heartbeat`."""

    def post(self, request: Request) -> Response:
        """Record a heartbeat. Return a request to stop, a requested profile, and the rendezvous round."""
        attempt = self.attempt(request)
        heartbeat = parse_message(request, Heartbeat)
        ingest.heartbeat(attempt, heartbeat)
        if heartbeat.interruption:
            interrupted(attempt.id, heartbeat.interruption)
        num_nodes = attempt.num_nodes  # type: ignore[attr-defined] # annotated where its token is checked
        round_, grows = rendezvous_rounds.newest_round(attempt) if num_nodes > 1 else (0, False)
        reply = HeartbeatReply(
            stop=stop_request_of(attempt), profile=profiles.wanted_of(attempt), round=round_, grows=grows
        )
        return Response(reply.model_dump(mode="json"))


class RendezvousView(AgentView):
    """Requests to `/rendezvous`."""

    def post(self, request: Request) -> Response:
        """Join the rendezvous of the attempt's nodes. Return a `JoinReply`, which may wait for the other nodes."""
        attempt, asked = self.attempt(request), parse_message(request, JoinRequest)
        reply = rendezvous_rounds.join(attempt, asked)
        if asked.wait_seconds and reply.state in ("gathering", "spare"):
            long_polls.hold(request, attempt, asked, reply)
        return Response(reply.model_dump(mode="json"))


class BatchView(AgentView):
    """Requests to `/metrics`, `/logs`, `/progress` and `/system`. `kind` is set in the URLs."""

    kind = ""

    def post(self, request: Request) -> Response:
        """Store a batch of one kind of report. Return the next expected sequence number."""
        # Log lines are stored compressed and may contain NUL; names of metrics and texts of events go into columns.
        batch = parse_message(request, Batch, may_contain_nul=self.kind == "logs")
        next_sequence = ingest.ingest(self.attempt(request), self.kind, batch)
        return Response(BatchReply(next_sequence=next_sequence).model_dump(mode="json"))


class PresignView(AgentView):
    """Requests to `/storage:presign`."""

    def post(self, request: Request) -> Response:
        """Return presigned URLs for objects that the attempt may read or write."""
        attempt, asked = self.attempt(request), parse_message(request, PresignRequest)
        check = services.check_may_write if asked.operation == "put" else services.check_may_read
        check(attempt, asked.keys)
        urls = []
        for key in asked.keys:
            url, expires_at = storage.presign(asked.operation, key)
            urls.append(PresignedUrl(key=key, url=url, expires_at=expires_at))
        return Response(PresignReply(urls=urls).model_dump(mode="json"))


class CheckpointsView(AgentView):
    """Requests to `/checkpoints`."""

    def post(self, request: Request) -> Response:
        """Register a stored checkpoint by its manifest."""
        attempt, manifest = self.attempt(request), parse_message(request, CheckpointManifest)
        row = services.register_checkpoint(attempt, manifest)
        rendezvous_rounds.grow_from_checkpoint(attempt, manifest.step)
        return Response({"id": row.id}, status=201)


class ReadCheckpointView(AgentView):
    """Requests to `/checkpoints:read`."""

    def post(self, request: Request) -> Response:
        """Return the manifest of a checkpoint of the job."""
        manifest = services.checkpoint_of(self.attempt(request), parse_message(request, CheckpointId))
        return Response(manifest.model_dump(mode="json"))


class DamagedCheckpointsView(AgentView):
    """Requests to `/checkpoints:damaged`."""

    def post(self, request: Request) -> Response:
        """Mark a checkpoint that the agent cannot read, so that nothing resumes from it."""
        checkpoint_states.report_damaged(self.attempt(request), parse_message(request, DamagedCheckpoint))
        return Response({}, status=200)


class RollbacksView(AgentView):
    """Requests to `/rollbacks`."""

    def post(self, request: Request) -> Response:
        """Return the job to an earlier checkpoint, because its loss diverged."""
        rollback = services.roll_back(self.attempt(request), parse_message(request, RollbackRequest))
        return Response(RollbackReply(rollback=rollback).model_dump(mode="json"))


class ArtifactsView(AgentView):
    """Requests to `/artifacts`."""

    def post(self, request: Request) -> Response:
        """Register a stored model by its manifest."""
        row = services.register_model(self.attempt(request), parse_message(request, ModelManifest))
        return Response({"id": row.id}, status=201)


class EvaluationsView(AgentView):
    """Requests to `/evaluations`."""

    def post(self, request: Request) -> Response:
        """Register the results of an evaluation job."""
        rows = evaluations.register(self.attempt(request), parse_message(request, EvaluationResults))
        return Response({"results": len(rows)}, status=201)


class ReplaysView(AgentView):
    """Requests to `/replays`."""

    def post(self, request: Request) -> Response:
        """Register the result of a segment of a replay."""
        row = replays.register(self.attempt(request), parse_message(request, ReplayResult))
        return Response({"number": row.number}, status=201)


class DatasetsView(AgentView):
    """Requests to `/datasets`, of trainers of earlier versions."""

    def post(self, request: Request) -> Response:
        """Register a tokenised data set that was prepared without a claim."""
        row = services.register_dataset(self.attempt(request), parse_message(request, DatasetManifest))
        return Response({"recipe": row.recipe}, status=201)


class ClaimPreparationView(AgentView):
    """Requests to `/preparations:claim`."""

    def post(self, request: Request) -> Response:
        """Ask to prepare a data set, or renew that. Return a `PreparationReply`."""
        reply = preparations.claim(self.attempt(request), parse_message(request, PreparationRequest))
        return Response(reply.model_dump(mode="json"))


class ReleasePreparationView(AgentView):
    """Requests to `/preparations:release`."""

    def post(self, request: Request) -> Response:
        """Give up the preparation of a data set."""
        preparations.release(self.attempt(request), parse_message(request, PreparationRelease))
        return Response({}, status=200)


class RegisterPreparationView(AgentView):
    """Requests to `/preparations:register`."""

    def post(self, request: Request) -> Response:
        """Register a tokenised data set under the token of its claim."""
        asked = parse_message(request, PreparationRegistration)
        row = services.register_dataset(self.attempt(request), asked.manifest, asked.token)
        return Response({"recipe": row.recipe}, status=201)


class DataReportsView(AgentView):
    """Requests to `/data-reports`."""

    def post(self, request: Request) -> Response:
        """Register a stored data report by its manifest."""
        row = data_reports.register(self.attempt(request), parse_message(request, DataReportManifest))
        return Response({"id": row.id}, status=201)


class ProfilesView(AgentView):
    """Requests to `/profiles`."""

    def post(self, request: Request) -> Response:
        """Register a stored profile by its manifest."""
        row = profiles.register(self.attempt(request), parse_message(request, ProfileManifest))
        return Response({"id": row.id}, status=201)


class EndView(AgentView):
    """Requests to `/end`."""

    def post(self, request: Request) -> Response:
        """Record the final report of the attempt."""
        record_end(self.attempt(request), parse_message(request, AttemptEnd))
        return Response({}, status=201)
