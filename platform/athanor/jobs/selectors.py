"""Queries of jobs for the API, scoped by the teams of the caller."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import (
    CharField,
    F,
    FloatField,
    Func,
    Prefetch,
    Q,
    QuerySet,
    Sum,
    Value,
    prefetch_related_objects,
)
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, NullIf
from django.utils import timezone
from pydantic import ValidationError

from athanor.accounts.models import Team, User
from athanor.accounts.selectors import Principal
from athanor.clusters.models import Pool
from athanor.core import ids, tenancy
from athanor.core.errors import NotFound
from athanor.core.keyset import Orders
from athanor.jobs import name_search
from athanor.jobs.goodput import AttemptFacts, Entry, Interruption, entries, interruptions
from athanor.jobs.models import Attempt, AttemptNode, DatasetUse, Job, JobEvent, Label
from athanor.jobs.states import HOLDING
from athanor.jobs.timeline import EVENT_TYPES, Span, timeline, worker_groups
from trainer.contract.checkpoint_interval import ChosenInterval
from trainer.contract.events import CHECKPOINT_INTERVAL, NODES_PLACED

# In order, and with what their answers show of their job.
ATTEMPTS = Prefetch("attempts", queryset=Attempt.objects.order_by("number").select_related("job__pool__cluster"))


COUNTED_ATTEMPTS = Prefetch("attempts", queryset=Attempt.objects.only("id", "job_id", "launched_at", "ended_at"))
TIMELINE_EVENTS = Prefetch(
    "events",
    queryset=JobEvent.objects.filter(type__in=EVENT_TYPES)
    .only("job_id", "type", "time", "actor", "data")
    .order_by("seq"),
    to_attr="timeline_events",
)
# What a list may be sorted by. Every order but that of creation sorts all jobs that match.
ORDERS: Orders = {
    "created_at": F("pk"),
    "started_at": F("started_at"),
    "finished_at": F("finished_at"),
    "name": F("name"),
    "slots": F("slots"),
    "step": F("progress__step"),
    "loss": Cast(KeyTextTransform("train/loss", "progress__values"), FloatField()),
    "validation_loss": F("progress__validation_last"),
    "mean_tokens_per_second": F("progress__trained_tokens") / NullIf("progress__trained_seconds", 0.0),
}
ID_LENGTH = len(ids.earliest_id("job", ids.EPOCH))
ID_BEGINNING = re.compile(rf"job_[0-9A-Z]{{4,{ID_LENGTH - len('job_')}}}")
ID_END = re.compile(r"[0-9A-Za-z]{6,26}")
# A search that more jobs can match reads them in their order: a page is near.
MAX_CANDIDATES = 2000
# Between the making of an id and of `created_at`.
MAX_SUBMIT_DURATION = timedelta(minutes=5)


def based_on(bases: Sequence[str]) -> Q:
    """Return the condition of the jobs that name, in their resolved spec, one of these as their base model."""
    return Q(resolved_spec__training__model__base__in=bases) | Q(resolved_spec__prepare__report__base__in=bases)


def plain_jobs_of(principal: Principal) -> QuerySet[Job]:
    """Without what answers show of them."""
    return Job.objects.filter(team_id__in=principal.team_ids)


def jobs_of(principal: Principal) -> QuerySet[Job]:
    """Return the jobs of the caller's teams with all that a job's page shows."""
    return plain_jobs_of(principal).select_related("team", "created_by", "pool__cluster").prefetch_related(ATTEMPTS)


def summaries_of(principal: Principal) -> QuerySet[Job]:
    """With what lists show of them, and without the rest."""
    jobs = plain_jobs_of(principal).select_related("team", "created_by", "pool__cluster", "progress")
    return jobs.defer("spec").prefetch_related(COUNTED_ATTEMPTS)


def details_of(principal: Principal, *, with_timeline: bool = True) -> QuerySet[Job]:
    """Return the caller's jobs with everything that their full form contains, on request without their timeline."""
    details = jobs_of(principal).select_related("progress")
    if with_timeline:
        details = details.prefetch_related(TIMELINE_EVENTS)  # type: ignore[no-redef] # declared for all queries
    return details


def job_of(principal: Principal, job_id: str) -> Job:
    """Return a job of the caller's teams. Raises NotFound."""
    job = jobs_of(principal).filter(pk=job_id).first()
    if job is None:
        raise NotFound("job", job_id)
    return job


def filtered(
    principal: Principal,
    *,
    statuses: list[str],
    team: str = "",
    project: str = "",
    query: str = "",
    labels: dict[str, str],
    dataset: str = "",
    created_by: str = "",
    created_after: datetime | None = None,
) -> QuerySet[Job]:
    """Return the caller's jobs that match. Empty values do not filter.

    `query` matches a part of the name, or the beginning or end of an id. Each filter is one that an index answers,
    under row security too (jobs/models.py).
    """
    jobs, team_ids = plain_jobs_of(principal), list(principal.team_ids)
    if statuses:
        jobs = jobs.filter(status__in=statuses)
    if team:
        named = set(Team.objects.filter(Q(name=team) | Q(id=team)).values_list("id", flat=True))
        team_ids = [team_id for team_id in team_ids if team_id in named]
        jobs = jobs.filter(team_id__in=team_ids)
    if project:
        jobs = jobs.filter(project=project)
    if query:
        jobs = jobs.filter(Q(name__icontains=query) | _id_like(query), *_candidates(team_ids, query))
    for key, value in labels.items():
        jobs = jobs.filter(id__in=Label.objects.filter(key=key, value=value).values("job_id"))
    if dataset:
        jobs = jobs.filter(id__in=DatasetUse.objects.filter(dataset_id=dataset).values("job_id"))
    if created_by:
        jobs = jobs.filter(
            created_by_id__in=list(User.objects.filter(username=created_by).values_list("pk", flat=True))
        )
    if created_after:
        # Ids sort by the time they were made, so the index that gives the order gives the range as well.
        earliest = ids.earliest_id("job", max(created_after, ids.EPOCH + MAX_SUBMIT_DURATION) - MAX_SUBMIT_DURATION)
        jobs = jobs.filter(created_at__gt=created_after, id__gte=earliest)
    return jobs


def creator(principal: Principal, name: str) -> str:
    """Return the username that a filter by creator names: `@me` is the caller."""
    return principal.user.username if name == "@me" else name


def _id_like(query: str) -> Q:
    """Return the condition that an id begins with `query`, or ends with it (as the dashboard shortens ids)."""
    if ID_BEGINNING.fullmatch(query):
        return Q(id__gte=query.ljust(ID_LENGTH, "0"), id__lte=query.ljust(ID_LENGTH, "Z"))
    return Q(id__endswith=query.upper()) if ID_END.fullmatch(query) else Q(id=query)


def _candidates(team_ids: Collection[str], query: str) -> list[Q]:
    """Return a condition that limits a search to the few jobs that an index finds for it.

    None where it finds many: then a page of matches is found sooner by reading jobs in their order.
    """
    if not name_search.is_searchable(query):
        return []
    may_end_id = ID_END.fullmatch(query) is not None
    found = name_search.candidates(team_ids, query, MAX_CANDIDATES, may_end_id=may_end_id)
    if found is not None and not may_end_id:
        by_id = Job.objects.filter(_id_like(query), team_id__in=team_ids)
        found += by_id.values_list("pk", flat=True)[: MAX_CANDIDATES + 1]
    if found is None or len(found) > MAX_CANDIDATES:
        return []
    value = Value(found, output_field=ArrayField(CharField()))
    # One parameter, so that all searches are one statement.
    return [Q(pk__in=Func(value, template="(SELECT unnest(%(expressions)s))"))]


def events_of(job: Job, after: int, limit: int) -> list[JobEvent]:
    """Return up to `limit` events of a job after a sequence number, in order."""
    return list(JobEvent.objects.filter(job=job, seq__gt=after).order_by("seq")[:limit])


def jobs_by_id(principal: Principal, job_ids: Sequence[str]) -> list[Job]:
    """Return these jobs of the caller in this order, each once. Raises NotFound for the first that is missing."""
    found = plain_jobs_of(principal).in_bulk(job_ids)
    for job_id in job_ids:
        if job_id not in found:
            raise NotFound("job", job_id)
    return [found[job_id] for job_id in dict.fromkeys(job_ids)]


def newest(jobs: QuerySet[Job], limit: int) -> list[Job]:
    """Return the newest jobs, at most `limit`."""
    return list(jobs.order_by("-pk")[:limit])


def jobs_of_team(principal: Principal, team: Team, job_ids: Sequence[str]) -> dict[str, Job]:
    """Return those of these jobs that the caller may see and that belong to the team, by id."""
    if not job_ids:
        return {}
    return {job.id: job for job in jobs_of(principal).filter(id__in=job_ids, team=team)}


def attempts_of(job: Job) -> list[Attempt]:
    """Return the attempts of a job, prefetched or not."""
    return list(job.attempts.all())


def timeline_of(job: Job) -> list[Span]:
    """Return where the job's time went, from its submission to its end or to now."""
    return timeline(trains=job.resolved_spec["training"] is not None, **_facts(job, job.finished_at or timezone.now()))


def goodput_of(job: Job, slots: Mapping[int, int]) -> tuple[list[Entry], list[Interruption]]:
    """Return what the slots of the job's attempts were held for until now, and what interrupted it.

    `slots`: those of each attempt, by its number.
    """
    now = job.finished_at or timezone.now()
    facts = _facts(job, now)
    spans = timeline(trains=job.resolved_spec["training"] is not None, **facts)
    attempts = _attempt_facts(job, now, slots)
    interrupted = interruptions(worker_groups(**facts), attempts)
    return entries(spans, attempts, interrupted), interrupted


def checkpoint_interval_of(job: Job) -> tuple[datetime, ChosenInterval] | None:
    """Return the longest time between checkpoints that the job's trainer has chosen last, and when. None if it has
    chosen none, or if what it reported is no such interval: the trainer is not trusted."""
    if job.resolved_spec["checkpoint"].get("every_minutes") != "auto":
        return None
    event = JobEvent.objects.filter(job=job, type=CHECKPOINT_INTERVAL).order_by("-seq").first()
    try:
        return None if event is None else (event.time, ChosenInterval.model_validate(event.data))
    except ValidationError:
        return None


def _facts(job: Job, end: datetime) -> dict[str, Any]:
    """Return what the functions of `athanor.jobs.timeline` compute from."""
    if not hasattr(job, "timeline_events"):
        prefetch_related_objects([job], TIMELINE_EVENTS)
    return {
        "events": job.timeline_events,
        "created_at": job.created_at,
        "end": end,
        "launched": {attempt.id: attempt.launched_at for attempt in attempts_of(job)},
    }


def _attempt_facts(job: Job, now: datetime, slots: Mapping[int, int]) -> list[AttemptFacts]:
    """Return the wall times, ends and nodes of the job's attempts."""
    rows = AttemptNode.objects.filter(attempt__job=job).values_list("attempt_id", "node_index", "name")
    nodes = {(attempt_id, index): name for attempt_id, index, name in rows}
    resources = job.resolved_spec["resources"]
    placed = _placements(job) if resources["nodes"] > 1 else {}
    found = []
    for attempt in attempts_of(job):
        report = attempt.end_report or {}
        own = attempt.known_nodes if len(attempt.known_nodes) == 1 else [""]
        found.append(
            AttemptFacts(
                attempt.number, attempt.launched_at, attempt.ended_at or now, attempt.reason, attempt.reason_detail,
                node=nodes.get((attempt.id, report.get("node_rank", -1)), own[0]),
                last_step=max(0, report["last_step"]) if "last_step" in report else None,
                slots=slots[attempt.number], nodes=resources["nodes"] + resources.get("spare_nodes", 0),
                placed=placed.get(attempt.id, ()),
            )
        )  # fmt: skip
    return found


def _placements(job: Job) -> dict[str, list[tuple[datetime, int]]]:
    """Return when the ranks of each attempt were placed, and on how many nodes, in order. Reports without nodes are
    ignored: the trainer is not trusted."""
    found: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for event in (
        JobEvent.objects.filter(job=job, type=NODES_PLACED).only("time", "actor", "data").order_by("time", "seq")
    ):
        nodes = event.data.get("nodes")
        if isinstance(nodes, list) and nodes:
            found[event.actor].append((event.time, len(nodes)))
    return found


def attempt_of(job: Job, number: int) -> Attempt:
    """Return an attempt of a job by its number. Raises NotFound."""
    rows = Attempt.objects.filter(job=job, job__team_id=job.team_id, number=number)
    attempt = rows.select_related("job__pool__cluster").first()
    if attempt is None:
        raise NotFound("attempt", str(number))
    return attempt


def load_attempts(job: Job) -> None:
    """Load the attempts of a job that was read without them."""
    prefetch_related_objects([job], ATTEMPTS)


_NO_ATTEMPTS = Attempt.objects.none()
_NO_ATTEMPTS._result_cache = []  # evaluated already, so that no query is needed


def mark_as_new(job: Job) -> None:
    """Mark a job that was created just now as having no attempts, progress or moves, which saves their queries."""
    job._prefetched_objects_cache = {"attempts": _NO_ATTEMPTS}  # type: ignore[attr-defined] # as prefetch_related fills it
    job.timeline_events = []
    job._meta.get_field("progress").set_cached_value(job, None)


def slots_held(pools: Collection[Pool]) -> dict[str, int]:
    """Return the slots that jobs of all teams hold, by id of the pool. A pool without such jobs is absent."""
    with tenancy.unrestricted():
        holding = Job.objects.filter(pool__in=pools, status__in=[status.value for status in HOLDING])
        sums = holding.values("pool_id").annotate(held=Sum("slots")).order_by()
        return {row["pool_id"]: row["held"] for row in sums}
