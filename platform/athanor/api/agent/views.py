"""One endpoint an act. Parses the contract's types, calls one service, answers."""

from typing import Any, TypeVar

from drf_spectacular.utils import extend_schema
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.artifacts import base_models, keys, profiles, services, storage, team_secrets
from athanor.core import tenancy
from athanor.core.errors import FieldProblem, Invalid, Unauthenticated
from athanor.core.logging import bound
from athanor.dispatch import rendezvous, tokens
from athanor.dispatch.services import interrupted, record_end, run_config_of, spec_of, stop_request_of
from athanor.jobs.models import Attempt
from athanor.telemetry import ingest
from trainer.contract.manifest import CheckpointManifest, DatasetManifest, ModelManifest, ProfileManifest
from trainer.contract.node_rendezvous import Join
from trainer.contract.run import (
    AttemptEnd,
    Batch,
    BatchReply,
    DataKeys,
    Heartbeat,
    HeartbeatReply,
    PresignedUrl,
    PresignReply,
    PresignRequest,
)

Wire = TypeVar("Wire", bound=BaseModel)
MOST_PROBLEMS = 20  # named in one answer


class AttemptAuthentication(BaseAuthentication):
    """`Authorization: Bearer att_...`, good while the attempt lives."""

    def authenticate(self, request: Request) -> tuple[None, Attempt]:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise Unauthenticated("token_missing", "an attempt's token is needed", remedy="send it as a bearer token")
        tenancy.see_all()  # until it is known whose attempt it is
        theirs = []
        try:
            attempt = tokens.recognise(secret.strip())
            theirs.append(attempt.job.team_id)
        finally:
            tenancy.restrict(theirs)
        return None, attempt

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class HasAttempt(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.auth, Attempt)


@extend_schema(exclude=True)
class AgentView(APIView):
    authentication_classes = (AttemptAuthentication,)
    permission_classes = (HasAttempt,)
    throttle_classes = ()

    def attempt(self, request: Request) -> Attempt:
        assert isinstance(request.auth, Attempt)
        return request.auth

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        attempt_id = request.headers.get("Authorization", "").removeprefix("Bearer ").partition(".")[0]
        with bound(attempt=attempt_id[:40]):
            return super().dispatch(request, *args, **kwargs)


class RunView(AgentView):
    def get(self, request: Request) -> Response:
        return Response(run_config_of(self.attempt(request)).model_dump(mode="json"))


class KeysView(AgentView):
    def get(self, request: Request) -> Response:
        job = self.attempt(request).job
        first, *others = job.dataset_ids
        owner = base_models.owner_of(job.team, spec_of(job).training)
        answer = DataKeys(
            job=keys.data_key(job.id, job.team),
            dataset=keys.data_key(first, job.team),
            more_datasets={dataset_id: keys.data_key(dataset_id, job.team) for dataset_id in others},
            base=keys.data_key(owner, job.team) if owner else "",
            secrets=team_secrets.deliver(job),
        )
        return Response(answer.model_dump(mode="json"))


class HeartbeatView(AgentView):
    def post(self, request: Request) -> Response:
        attempt = self.attempt(request)
        heartbeat = parse(Heartbeat, _without_nul(request.body))
        ingest.heartbeat(attempt, heartbeat)
        if heartbeat.interruption:
            interrupted(attempt.id, heartbeat.interruption)
        num_nodes = attempt.num_nodes  # type: ignore[attr-defined] # annotated where its token is checked
        round_ = rendezvous.newest_round(attempt) if num_nodes > 1 else 0
        reply = HeartbeatReply(stop=stop_request_of(attempt), profile=profiles.wanted_of(attempt), round=round_)
        return Response(reply.model_dump(mode="json"))


class RendezvousView(AgentView):
    def post(self, request: Request) -> Response:
        place = rendezvous.join(self.attempt(request), parse(Join, _without_nul(request.body)))
        return Response(place.model_dump(mode="json"))


class BatchView(AgentView):
    """/metrics, /logs and /progress; `kind` is set in the URLs."""

    kind = ""

    def post(self, request: Request) -> Response:
        # From the bytes: to parse a thousand points and check them apart would take twice the time. Lines of logs are
        # stored compressed and may hold a NUL; names of metrics and texts of events go into columns that cannot.
        batch = parse(Batch, request.body if self.kind == "logs" else _without_nul(request.body))
        next_sequence = ingest.ingest(self.attempt(request), self.kind, batch)
        return Response(BatchReply(next_sequence=next_sequence).model_dump(mode="json"))


class PresignView(AgentView):
    def post(self, request: Request) -> Response:
        attempt, asked = self.attempt(request), parse(PresignRequest, _without_nul(request.body))
        check = services.check_may_write if asked.operation == "put" else services.check_may_read
        check(attempt, asked.keys)
        urls = []
        for key in asked.keys:
            url, expires_at = storage.presign(asked.operation, key)
            urls.append(PresignedUrl(key=key, url=url, expires_at=expires_at))
        return Response(PresignReply(urls=urls).model_dump(mode="json"))


class CheckpointsView(AgentView):
    def post(self, request: Request) -> Response:
        row = services.register_checkpoint(self.attempt(request), parse(CheckpointManifest, _without_nul(request.body)))
        return Response({"id": row.id}, status=201)


class ArtifactsView(AgentView):
    def post(self, request: Request) -> Response:
        row = services.register_model(self.attempt(request), parse(ModelManifest, _without_nul(request.body)))
        return Response({"id": row.id}, status=201)


class DatasetsView(AgentView):
    def post(self, request: Request) -> Response:
        row = services.register_dataset(self.attempt(request), parse(DatasetManifest, _without_nul(request.body)))
        return Response({"recipe": row.recipe}, status=201)


class ProfilesView(AgentView):
    def post(self, request: Request) -> Response:
        row = profiles.register(self.attempt(request), parse(ProfileManifest, _without_nul(request.body)))
        return Response({"id": row.id}, status=201)


class EndView(AgentView):
    def post(self, request: Request) -> Response:
        record_end(self.attempt(request), parse(AttemptEnd, _without_nul(request.body)))
        return Response({}, status=201)


def _without_nul(body: bytes) -> bytes:
    """Replace NUL, which columns of text cannot hold. A message is not refused for one: an exception's text may carry
    it."""
    return body.replace(rb"\u0000", rb"\ufffd")


def parse(type_: type[Wire], body: bytes) -> Wire:
    """Return the message in `body`. Raises Invalid, which names each wrong field and its value."""
    try:
        return type_.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[:MOST_PROBLEMS]
        problems = tuple(
            FieldProblem("/" + "/".join(str(piece) for piece in item["loc"]), item["type"], _described(item))
            for item in found
        )
        raise Invalid(
            "invalid_message",
            f"not a valid {type_.__name__}: {problems[0].pointer}: {problems[0].detail}",
            remedy="correct the field; if a trainer sent it, use the trainer of this platform's version",
            problems=problems,
        ) from error


def _described(item: ErrorDetails) -> str:
    """What is wrong with a field, and with which value if that is short."""
    value = item["input"]
    return f"{item['msg']}, not {value}" if isinstance(value, int | float) else item["msg"]
