"""Secrets of a team, such as a token for a hub. Only attempts of jobs that name a secret receive its value.

Values are encrypted with the team's key. No selector or view returns one; only the agent API calls `deliver`. A secret
that the platform's own clients send to a server (MLflow's credentials) is sent only to the destinations that an
administrator of the team has set for it: checked when a job is submitted, and again when its attempt requests it.
"""

from collections.abc import Iterable, Sequence

from django.db import transaction
from django.db.models import QuerySet

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.accounts.selectors import Principal
from athanor.artifacts import keys
from athanor.artifacts.models import TeamSecret
from athanor.core import encryption, outbound
from athanor.core.errors import FieldProblem, Invalid, NotFound
from athanor.jobs import events
from athanor.jobs.models import Job
from athanor.specs.v1 import JobSpec
from trainer.contract.addresses import DEFAULT_PORTS, Refused, check, origin_of
from trainer.contract.telemetry import MLFLOW_SECRETS

SETTING = "ATHANOR_OUTBOUND_ALLOW"


def put(
    team: Team, name: str, value: str, user: User, destinations: Sequence[str] | None = None
) -> tuple[TeamSecret, bool]:
    """Create or replace a secret. Return it, and True if it is new. Running attempts continue with the old value.

    `destinations` None keeps those of an existing secret; a new one then has none. Raise Invalid for a bad origin.
    """
    changes = {} if destinations is None else {"destinations": checked_destinations(destinations)}
    with transaction.atomic():
        wrapped = encryption.wrap(keys.locked_team_keyset(team), value, owner_of(team.id, name))
        row, created = TeamSecret.objects.update_or_create(
            team=team, name=name, defaults={"wrapped": wrapped, "updated_by": user, **changes}
        )
        action = "secret.create" if created else "secret.replace"
        facts = {"name": name, "destinations": row.destinations}
        audit.record(action, actor=user, target=("secret", row.id), team_id=team.id, after=facts)
    return row, created


def set_destinations(row: TeamSecret, destinations: Sequence[str], user: User) -> TeamSecret:
    """Replace the destinations of a secret, without its value. Raise Invalid for a bad origin."""
    checked = checked_destinations(destinations)
    with transaction.atomic():
        locked = TeamSecret.objects.select_for_update(no_key=True).filter(pk=row.pk).first()
        if locked is None:
            raise NotFound("secret", row.pk)
        before = {"name": locked.name, "destinations": locked.destinations}
        locked.destinations, locked.updated_by = checked, user
        locked.save(update_fields=["destinations", "updated_by", "updated_at"])
        after = {"name": locked.name, "destinations": checked}
        audit.record(
            "secret.destinations", actor=user, target=("secret", locked.pk), team_id=locked.team_id,
            before=before, after=after,
        )  # fmt: skip
    return locked


def checked_destinations(written: Sequence[str]) -> list[str]:
    """Return the origins in normal form.

    Raise Invalid for one that is not an origin or may not be reached.
    """
    found, problems = [], []
    for number, text in enumerate(written):
        try:
            found.append(_checked_origin(text))
        except Refused as refused:
            detail = f"{text!r} is not a destination: {refused}"
            problems.append(FieldProblem(f"/destinations/{number}", "destination", detail))
    if problems:
        remedy = "write scheme://host[:port] of a public https server; others must be in ATHANOR_OUTBOUND_ALLOW"
        raise Invalid("invalid_destination", problems[0].detail, remedy=remedy, problems=tuple(problems))
    return list(dict.fromkeys(found))


def delete(row: TeamSecret, user: User) -> None:
    """Delete a secret. Running attempts keep its value; later ones start without the variable."""
    with transaction.atomic():
        name, identifier = row.name, row.id
        TeamSecret.objects.filter(pk=identifier).delete()
        audit.record(
            "secret.delete", actor=user, target=("secret", identifier), team_id=row.team_id, before={"name": name}
        )


def secrets_of(team: Team) -> QuerySet[TeamSecret]:
    """Return the team's secrets by name."""
    return TeamSecret.objects.filter(team=team).select_related("updated_by").order_by("name")


def secret_of(principal: Principal, secret_id: str) -> TeamSecret:
    """Return a secret of one of the caller's teams, or raise NotFound."""
    row = TeamSecret.objects.filter(pk=secret_id, team_id__in=principal.team_ids).first()
    if row is None:
        raise NotFound("secret", secret_id)
    return row


def missing(team: Team, names: Iterable[str]) -> list[str]:
    """Return those of `names` that the team does not have."""
    known = set(TeamSecret.objects.filter(team=team).values_list("name", flat=True))
    return [name for name in names if name not in known]


def _checked_origin(text: str) -> str:
    check(text, outbound.allowed())
    origin = origin_of(text)
    if text.lower().rstrip("/") not in (origin, f"{origin}:{DEFAULT_PORTS[origin.partition(':')[0]]}"):
        raise Refused(f"give only scheme, host and port, such as {origin}")
    return origin


def telemetry_problems(team: Team, spec: JobSpec) -> list[FieldProblem]:
    """Return why a job may not report to its MLflow server.

    The address may be internal, or a secret may not be sent there.
    """
    if spec.telemetry.mlflow is None:
        return []
    uri = spec.telemetry.mlflow.tracking_uri
    try:
        check(uri, outbound.allowed())
        origin = origin_of(uri)
    except Refused as refused:
        detail = f"{uri!r}: {refused}; name a public https server, or have an administrator list it in {SETTING}"
        return [FieldProblem("/telemetry/mlflow/tracking_uri", "address_not_allowed", detail)]
    return [
        FieldProblem(
            f"/secrets/{spec.secrets.index(row.name)}",
            "destination_not_allowed",
            f"secret {row.name!r} may not be sent to {origin} "
            f"(its destinations: {', '.join(row.destinations) or 'none'}); "
            f"an administrator of team {team.name} adds it: athanor secret destinations {row.name} {origin}",
        )
        for row in _bound_rows(team.id, spec.secrets)
        if origin not in row.destinations
    ]


def deliver(job: Job) -> dict[str, str]:
    """Return the values of the secrets that the job names, for its attempt. Deleted ones are left out, and so are those
    whose destinations no longer include the job's server, which is recorded as an event of the job."""
    spec = JobSpec.model_validate(job.resolved_spec)
    if not spec.secrets:
        return {}
    withheld: set[str] = set()
    if spec.telemetry.mlflow is not None:
        try:
            origin = origin_of(spec.telemetry.mlflow.tracking_uri)
        except Refused:
            origin = ""
        withheld = {row.name for row in _bound_rows(job.team_id, spec.secrets) if origin not in row.destinations}
        if withheld:
            _record_withheld(job, sorted(withheld), origin)
    names = [name for name in spec.secrets if name not in withheld]
    rows = TeamSecret.objects.filter(team_id=job.team_id, name__in=names).annotate(team_wrapped=keys.TEAM_WRAPPED)
    return {row.name: keys.opened(row, owner_of(row.team_id, row.name)) for row in rows}


def _bound_rows(team_id: str, names: Iterable[str]) -> QuerySet[TeamSecret]:
    """Return the named secrets that the trainer sends to a server: MLflow's credentials. No other leaves a process."""
    return TeamSecret.objects.filter(team_id=team_id, name__in=set(names) & set(MLFLOW_SECRETS)).order_by("name")


def _record_withheld(job: Job, names: list[str], origin: str) -> None:
    message = f"{', '.join(names)} may no longer be sent to {origin}: an administrator of the team sets destinations"
    with transaction.atomic():
        locked = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
        events.append(locked, "secret.withheld", actor="dispatch", message=message, data={"secrets": names})
        locked.save(update_fields=["event_seq", "updated_at"])


def owner_of(team_id: str, name: str) -> str:
    """Return the associated data of a secret: moved to another team or name, it does not decrypt."""
    return f"secret:{team_id}:{name}"
