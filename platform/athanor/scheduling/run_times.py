"""What is known of how long jobs run: the progress of running ones, and the ended runs of like jobs and of teams."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import F, QuerySet
from django.db.models.fields.json import KeyTransform

from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import AttemptStatus, JobStatus
from athanor.scheduling import snapshots
from athanor.scheduling.policy.snapshot import Snapshot
from athanor.scheduling.run_lengths import PastRun, RunTimes
from athanor.specs.v1 import JobSpec
from athanor.telemetry.models import Progress
from trainer.contract.optimisation import batch_size_schedule

HISTORY = 2000  # ended runs that run times are drawn from
Likeness = tuple[object, ...]


class LikeRun(NamedTuple):
    """A run of a like job, in seconds: its length, the time that it held its slots, and that of its training steps."""

    seconds: float
    held_seconds: float
    trained_seconds: float


_TRAINING = ("model", "steps", "tokens_per_step")


def run_times(snapshot: Snapshot) -> RunTimes:
    """Return what is known for the jobs of a snapshot."""
    of_leaf, of_all = _past_runs()
    running = {holding.job_id: holding.ran_seconds for holding in snapshot.holdings if not holding.leaving}
    queued = [waiting.job_id for waiting in snapshot.waiting]
    alike = _like_runs([*running, *queued])
    return RunTimes(
        of_leaf,
        of_all,
        left=left_by_progress(running),
        beside=_beside_training(running, alike),
        alike={job_id: [run.held_seconds for run in runs] for job_id, runs in alike.items()},
        default_limit=JobSpec.model_fields["time_limit_seconds"].default,
    )


def left_by_progress(job_ids: Iterable[str]) -> dict[str, int]:
    """Return the seconds of training that running jobs have left at their mean throughput, where it is known."""
    rows = Progress.objects.filter(
        job__in=list(job_ids), job__status=JobStatus.RUNNING.value, step__gt=0, trained_seconds__gt=0,
        job__resolved_spec__replay__isnull=True, job__resolved_spec__export__isnull=True,
    )  # fmt: skip
    found = {}
    for row in rows.annotate(training=F("job__resolved_spec__training")):
        training, rate = row.training, row.mean_tokens_per_second
        if training and rate:
            schedule = batch_size_schedule(
                training["tokens_per_step"], training["sequence_length"], training.get("batch_ramp")
            )
            rows_left = schedule.sequences_before(training["steps"]) - schedule.sequences_before(row.step)
            found[row.job_id] = max(int(rows_left * training["sequence_length"] / rate), 0)
    return found


def seconds_of_like_jobs(job: Job) -> list[float]:
    """Return how many seconds succeeded jobs of the same user, pool, size, model and steps ran.

    `job` need not be saved. Jobs that took several attempts are left out.
    """
    if job.resolved_spec.get("replay") or job.resolved_spec.get("export"):
        return []
    training = job.resolved_spec["training"] or {}
    facts = (job.created_by_id, job.pool_id, job.slots, *(training.get(name) for name in _TRAINING))
    return [run.seconds for run in _of_likenesses({job.id: _likeness(*facts)}).get(job.id, [])]


def _like_runs(job_ids: Sequence[str]) -> dict[str, list[LikeRun]]:
    """Return the runs of like jobs for many saved jobs, by id."""
    rows = _facts(
        Job.objects.filter(pk__in=job_ids, resolved_spec__replay__isnull=True, resolved_spec__export__isnull=True), "id"
    )
    return _of_likenesses({job_id: _likeness(*facts) for job_id, *facts in rows})


def _beside_training(ran: Mapping[str, int], alike: Mapping[str, Sequence[LikeRun]]) -> dict[str, list[float]]:
    """Return the seconds that running jobs still need for all that is no training step, as like jobs did.

    `ran`: seconds since each was admitted, by id. Start-up, evaluations, checkpoints and the export count as one sum,
    of which a job has had what it did not train.
    """
    found = {}
    for job_id, trained_seconds in Progress.objects.filter(job__in=ran).values_list("job_id", "trained_seconds"):
        had = max(ran[job_id] - trained_seconds, 0.0)  # a job of several attempts trained before it was admitted again
        if runs := alike.get(job_id):
            found[job_id] = [max(run.held_seconds - run.trained_seconds - had, 1.0) for run in runs]
    return found


def _of_likenesses(asked: Mapping[str, Likeness]) -> dict[str, list[LikeRun]]:
    ended = Attempt.objects.filter(
        number=1,
        job__status=JobStatus.SUCCEEDED.value,
        job__created_by__in={likeness[0] for likeness in asked.values()},
        job__resolved_spec__replay__isnull=True,  # it takes only some of the steps that its spec has
        job__resolved_spec__export__isnull=True,  # it takes none of them
        ended_at__gt=F("launched_at"),
    )
    ended = ended.exclude(job__attempts__number__gt=1).order_by("-id")
    known: dict[Likeness, list[LikeRun]] = defaultdict(list)
    times = ("created_at", "launched_at", "ended_at", "job__progress__trained_seconds")
    for created_at, launched_at, ended_at, trained_seconds, *facts in _facts(ended, *times, of="job__")[:HISTORY]:
        held_seconds = (ended_at - created_at).total_seconds()
        run = LikeRun((ended_at - launched_at).total_seconds(), held_seconds, trained_seconds or 0.0)
        known[_likeness(*facts)].append(run)
    return {job_id: known[likeness] for job_id, likeness in asked.items() if likeness in known}


def _facts(rows: QuerySet[Any], *fields: str, of: str = "") -> Any:
    """Return the fields of jobs or attempts, followed by what makes two jobs alike."""
    training = KeyTransform("training", f"{of}resolved_spec")
    return rows.values_list(
        *fields, f"{of}created_by", f"{of}pool", f"{of}slots", *(KeyTransform(name, training) for name in _TRAINING)
    )


def _likeness(*facts: object) -> Likeness:
    """Return what two jobs have in common if they are alike: user, pool, slots; model and steps as text."""
    return *facts[:3], json.dumps(facts[3:], sort_keys=True)


def _past_runs() -> tuple[dict[str, list[PastRun]], list[PastRun]]:
    """Return the newest ended attempts: by leaf of the quota tree, and all."""
    leaves = snapshots.leaves()
    ended = Attempt.objects.filter(
        status=AttemptStatus.ENDED.value, launched_at__isnull=False, ended_at__gt=F("launched_at")
    ).order_by("-id")
    of_leaf: dict[str, list[PastRun]] = defaultdict(list)
    of_all: list[PastRun] = []
    rows = ended.values_list("job__team_id", "created_at", "ended_at", "job__time_limit_seconds")[:HISTORY]
    for team_id, created_at, ended_at, limit in rows:
        if ended_at is None:
            continue
        run = PastRun(min((ended_at - created_at).total_seconds(), limit), limit)
        of_all.append(run)
        of_leaf[leaves[team_id]].append(run)
    return of_leaf, of_all
