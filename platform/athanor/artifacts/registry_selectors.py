"""Queries of registered models and their versions, limited to the teams of the caller and what is shared with them."""

from collections.abc import Collection

from django.db.models import (
    BooleanField,
    Count,
    ExpressionWrapper,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
)
from django.db.models.functions import Coalesce

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal
from athanor.artifacts import grants
from athanor.artifacts.models import Artifact, EvaluationResult, ModelAlias, ModelImport, ModelVersion, RegisteredModel
from athanor.core.errors import Conflict, Forbidden, NotFound
from athanor.jobs.models import Attempt, Job

ALIASES = Prefetch("aliases", ModelAlias.objects.select_related("version", "moved_by").order_by("name"))


def models_of(principal: Principal, *, team: str = "", name: str = "") -> QuerySet[RegisteredModel]:
    """Return the models of the principal's teams and those shared with them (`is_shared`).

    `team`: only those of the team with this name; `name`: only those with this name.
    """
    own = Q(team_id__in=principal.team_ids)
    rows = RegisteredModel.objects.filter(own | grants.is_granted_to(principal.team_ids))
    if team:
        rows = rows.filter(team__name=team)
    if name:
        rows = rows.filter(name=name)
    rows = rows.select_related("team", "created_by").prefetch_related(ALIASES)
    rows = rows.order_by("-id")
    return rows.annotate(  # type: ignore[no-redef] # the model declares them for readers
        num_versions=Count("versions"), is_shared=ExpressionWrapper(~own, BooleanField())
    )


def model_of(principal: Principal, model_id: str) -> RegisteredModel:
    """Return a model of one of the principal's teams, or one that is shared with them, or raise NotFound."""
    row = models_of(principal).filter(pk=model_id).first()
    if row is None:
        raise NotFound("model", model_id)
    return row


def own_model_of(principal: Principal, model_id: str) -> RegisteredModel:
    """Return a model of one of the principal's teams, or raise NotFound; Forbidden for one that is shared with them."""
    row = model_of(principal, model_id)
    if row.is_shared:
        detail = f"model {row.name!r} belongs to team {row.team.name}, which shares it for reading"
        raise Forbidden(
            "shared_model", detail, remedy="use it as a base or download it; for all else ask the team that owns it"
        )
    return row


def versions_of(principal: Principal, model: RegisteredModel, before: int | None = None) -> QuerySet[ModelVersion]:
    """Return the versions of a model, newest first; with `before`, those with a lower number.

    They come with the results of evaluations by the model's team; those of a shared model with results by the
    principal's teams, since the others name data of its owner.
    """
    rows = with_origins(ModelVersion.objects.filter(model=model))
    if before is not None:
        rows = rows.filter(number__lt=before)
    rows = rows.select_related("model", "artifact", "created_by")
    evaluated_by = principal.team_ids if model.is_shared else [model.team_id]
    return rows.prefetch_related("aliases", results_by(evaluated_by)).order_by("-number")


def results_by(team_ids: Collection[str]) -> "Prefetch[str]":
    """Read the results of evaluations of versions by these teams, for `ModelVersion.evaluations`."""
    rows = (
        EvaluationResult.objects.filter(team_id__in=list(team_ids)).select_related("job").defer("items").order_by("pk")
    )
    return Prefetch("artifact__evaluations", rows, to_attr="results")


def with_origins(rows: QuerySet[ModelVersion]) -> QuerySet[ModelVersion]:
    """Read the numbers of the attempts that exported the versions, and why an imported one cannot be trained.

    The number is None of a shared version, as its job is not readable, and of an imported one.
    """
    number = Attempt.objects.filter(pk=OuterRef("artifact__attempt_id")).values("number")
    reason = ModelImport.objects.filter(pk=OuterRef("artifact_id")).values("not_trainable")
    found = {"attempt_number": Subquery(number), "not_trainable": Coalesce(Subquery(reason), Value("", TextField()))}
    return rows.annotate(**found)


def version_of(principal: Principal, model: RegisteredModel, number: int) -> ModelVersion:
    """Return a version of a model, or raise NotFound."""
    row = versions_of(principal, model).filter(number=number).first()
    if row is None:
        raise NotFound("version", f"{model.name}@{number}")
    return row


def version_named(
    principal: Principal, model: RegisteredModel, which: str, *, is_optional: bool = False
) -> ModelVersion | None:
    """Return the version with this alias or number. Raise NotFound; with `is_optional`, return None instead."""
    rows = versions_of(principal, model)
    if which.isascii() and which.isdecimal():
        found = rows.filter(number=int(which)).first() if len(which) < 10 else None
    else:
        found = rows.filter(aliases__name=which).first()
    if found is None and not is_optional:
        raise NotFound("version", f"{model.name}@{which}")
    return found


def export_of(job: Job) -> Artifact:
    """Return the newest model that a job exported. Raise Conflict if it has none."""
    rows = Artifact.objects.filter(job=job, kind=Artifact.Kind.MODEL, deletion=None).select_related("job__team")
    found = rows.order_by("-created_at", "-pk").first()
    if found is None:
        detail = f"{job.id} has no model (it is {job.status})"
        raise Conflict(
            "no_model", detail, remedy="register it when the job has succeeded, or set output.register in its spec"
        )
    return found


def find_version(team: Team, reference: str) -> ModelVersion:
    """Return the version of `NAME@ALIAS` or `NAME@NUMBER` in a team, or of `OWNER/NAME@...` of a model that the team
    OWNER shares with it. Raise LookupError that says what there is."""
    name, _, which = reference.partition("@")
    model = _find_model(team, name)
    versions = ModelVersion.objects.filter(model=model).select_related("model", "artifact")
    if which.isdecimal():
        found = versions.filter(number=int(which)).first() if len(which) < 10 else None
        if found is None:
            raise LookupError(f"model {name!r} has no version {which}; `athanor model show {name}` lists its versions")
        return found
    found = versions.filter(aliases__name=which, aliases__model=model).first()
    if found is None:
        known = ", ".join(ModelAlias.objects.filter(model=model).order_by("name").values_list("name", flat=True))
        raise LookupError(
            f"model {name!r} has no alias {which!r} (its aliases: {known or 'none'}); name one of these or a version, "
            f"or create it: athanor model alias {name} {which or 'ALIAS'} VERSION"
        )
    return found


def _find_model(team: Team, name: str) -> RegisteredModel:
    """Return the team's model NAME, or, as OWNER/NAME, one that is shared with it. Raise LookupError."""
    owner, slash, rest = name.rpartition("/")  # neither name contains one
    if not slash or owner == team.name:
        model = RegisteredModel.objects.filter(team=team, name=rest).first()
        if model is None:
            raise LookupError(f"team {team.name} has no model {rest!r}; `athanor model list` shows those that it has")
        return model
    shared = grants.is_granted_to([team.id])
    model = RegisteredModel.objects.filter(shared, team__name=owner, name=rest).first()
    if model is None:
        raise LookupError(
            f"team {owner} shares no model {rest!r} with team {team.name}; `athanor model list` shows those that are "
            "shared, and an administrator of the team that owns a model can share it"
        )
    return model
