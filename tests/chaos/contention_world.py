"""The world of a scene of `contention`, what its processes do there, and what is found in its log afterwards."""

import json
import random
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from athanor.accounts.models import Membership, Role, Team, User
from athanor.artifacts import datasets
from athanor.budgets import ledger, metering_cycle
from athanor.budgets import services as budgets
from athanor.budgets.models import Budget, Reservation, Transfer
from athanor.clusters.models import Cluster, Pool
from athanor.core.errors import AthanorError
from athanor.core.ids import EPOCH
from athanor.dispatch import finalise, submit
from athanor.dispatch.services import locked
from athanor.jobs import services as jobs
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.states import ATTEMPT_LIVE, FINAL, HOLDING, AttemptStatus, Desired, JobStatus
from athanor.quotas.models import AdmissionSettings, QuotaGrant, QuotaNode
from athanor.quotas.services import leaf_of, locked_root
from athanor.scheduling import services as scheduling
from athanor.scheduling import snapshots, stored_cycles
from athanor.scheduling.models import AdmissionCycle
from athanor.specs.validation import parse_spec
from tests.chaos.contention import LOG_TABLE
from tests.chaos.quota_oracle import Granted, Held, Node, Tree, admission_problems
from trainer.contract.run import AttemptEnd, EndClass

TEAMS = 5
ACCELERATORS = ("cpu", "h100")
ACTOR = "chaos"
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "chaos",
    "time_limit_seconds": 600,
    "training": {
        "model": {"preset": "llama-1m"},
        "data": {"source": "builtin:python-stdlib"},
        "steps": 10,
        "tokens_per_step": 512,
        "sequence_length": 64,
        "schedule": {"warmup_steps": 2},
    },
}


def prepare(seed: int) -> dict[str, Any]:
    """Two pools, two groups, five teams with quotas and limits of their own, and a few jobs that wait."""
    chance = random.Random(seed)
    call_command("flush", interactive=False, verbosity=0, inhibit_post_migrate=True)
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {LOG_TABLE}")
    cluster = Cluster.objects.create(name="fake", kind="fake", config={"world": "contention"})
    for accelerator in ACCELERATORS:
        Pool.objects.create(
            cluster=cluster, name=accelerator, accelerator=accelerator, slots_per_node=chance.choice([4, 8, 12]),
            nodes=2, spare_nodes=1, memory_bytes=64 * 2**30,
        )  # fmt: skip
    user = User.objects.create(username=ACTOR)
    AdmissionSettings.objects.create(protected_seconds=0, age_step_seconds=chance.choice([0, 1, 86_400]))
    with transaction.atomic():
        root = locked_root()
        groups = [QuotaNode.objects.create(parent=root, name=f"group-{number}") for number in range(2)]
        for number in range(TEAMS):
            team = Team.objects.create(name=f"team-{number}")
            Membership.objects.create(user=user, team=team, role=Role.MEMBER)
            leaf = leaf_of(team)
            leaf.parent = chance.choice([root, *groups])
            leaf.save()
            datasets.resolve_all(team, parse_spec(SPEC).data, "/training")
        for node in QuotaNode.objects.order_by("id"):
            _change_at_random(chance, node)
        _log_tree()
    for node in chance.sample(list(QuotaNode.objects.order_by("id")), 3):
        amount = _amount(chance)
        budgets.create(
            node.id, user, name="chaos", unit="slot_hours", period="month", amount=amount, soft_percent=80, hard=True
        )
    for _ in range(6):
        _submit(chance)
    return {}


def make_tables() -> dict[str, Any]:
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {LOG_TABLE} (time double precision, tree jsonb)")
    return {}


def plant() -> dict[str, Any]:
    """From now on this process does not count what was admitted in the last two seconds: a fault that must be found."""
    take = snapshots.take

    def forgetful(now: datetime) -> snapshots.TakenSnapshot:
        taken = take(now)
        known = [holding for holding in taken.snapshot.holdings if holding.ran_seconds > 1]
        return replace(taken, snapshot=replace(taken.snapshot, holdings=known))

    scheduling.snapshots.take = forgetful
    return {}


def work(seed: int, until: float) -> dict[str, int]:
    """Does one thing after another until then. What a user may not do is refused; that is no failure."""
    chance = random.Random(seed)
    deeds = [_submit, _admit, _launch, _finish, _cancel, _pause, _edit, _raise_or_lower, _meter]
    done: Counter[str] = Counter()
    while time.time() < until:
        deed = chance.choices(deeds, weights=[6, 5, 6, 6, 1, 1, 1, 1, 1])[0]
        try:
            deed(chance)
        except AthanorError:
            done["refused"] += 1
        done[deed.__name__] += 1
    return done


def _submit(chance: random.Random) -> None:
    accelerator = chance.choice(ACCELERATORS)
    team = Team.objects.order_by("?").first()
    pool = Pool.objects.get(accelerator=accelerator)
    assert team is not None
    written = {
        **SPEC,
        "priority": chance.choice(["low", "normal", "high"]),
        "resources": {"accelerator": accelerator, "processes_per_node": chance.choice([1, 1, 2, 3, 4])},
    }
    spec = parse_spec(written)
    data = [row.id for row in datasets.resolve_all(team, spec.data, "/training")]
    jobs.submit(jobs.Submission(User.objects.get(username=ACTOR), team, pool, data, written, spec))


def _admit(_: random.Random) -> None:
    scheduling.admit()


def _launch(chance: random.Random) -> None:
    """What dispatch does; its backend says at once that the run trains."""
    submit.prepare_due()
    attempt = _any(Attempt.objects.filter(status=AttemptStatus.PREPARED.value))
    if attempt is None:
        return
    with locked(attempt.id) as (job, row):
        if row.status != AttemptStatus.PREPARED.value or job.status != JobStatus.DISPATCHING.value:
            return
        row.launched_at = timezone.now()
        transitions.move_attempt(row, AttemptStatus.SUBMITTED)
        transitions.move(job, JobStatus.STARTING, actor="dispatch")
        if chance.random() < 0.8:
            transitions.move_attempt(row, AttemptStatus.RUNNING)
            transitions.move(job, JobStatus.RUNNING, actor="dispatch")


def _finish(chance: random.Random) -> None:
    """One that is asked to end does; else any may end by itself, well or not."""
    asked = [JobStatus.PAUSING.value, JobStatus.STOPPING.value]
    live = Attempt.objects.filter(status__in=[AttemptStatus.SUBMITTED.value, AttemptStatus.RUNNING.value])
    attempt = _any(live.filter(job__status__in=asked)) or _any(live)
    if attempt is None:
        return
    with locked(attempt.id) as (_, row):
        if row.status not in (AttemptStatus.SUBMITTED.value, AttemptStatus.RUNNING.value):
            return
        how = chance.choice([EndClass.DATA_ERROR, EndClass.DATA_ERROR, EndClass.STOPPED])
        end = AttemptEnd(end_class=how, last_step=5, message="", at=datetime.now(UTC))
        row.end_report = end.model_dump(mode="json")
        transitions.move_attempt(row, AttemptStatus.ENDED)
    finalise.finalise_due()
    Job.objects.filter(act_after__isnull=False).update(act_after=None)  # no backoff in a scene


def _cancel(_: random.Random) -> None:
    _request(jobs.request_stop, Desired.STOP, JobStatus.STOPPING)


def _pause(chance: random.Random) -> None:
    if chance.random() < 0.5:
        _request(jobs.request_pause, Desired.PAUSE, None)
    else:
        _request(jobs.request_resume, Desired.RUN, None)


def _request(ask: jobs.JobAction, desired: Desired, to: JobStatus | None) -> None:
    job = _any(Job.objects.exclude(status__in=[status.value for status in FINAL]))
    if job is None:
        return
    ask(job.id, ACTOR)
    if to is None:
        return
    with transaction.atomic():
        row = Job.objects.select_for_update(no_key=True).get(pk=job.id)
        if row.desired == desired.value and row.status in (JobStatus.STARTING.value, JobStatus.RUNNING.value):
            transitions.move(row, to, reason=transitions.Reason.STOPPED_BY_USER, actor="dispatch")


def _edit(chance: random.Random) -> None:
    with transaction.atomic():
        locked_root()
        _change_at_random(chance, chance.choice(list(QuotaNode.objects.order_by("id"))))
        _log_tree()


def _raise_or_lower(chance: random.Random) -> None:
    budget = _any(Budget.objects.all())
    budgets.change(budget.id, User.objects.get(username=ACTOR), lambda _: None, amount=_amount(chance))


def _amount(chance: random.Random) -> int:
    """Enough for some jobs at once, for one or for none."""
    return int(SPEC["time_limit_seconds"]) * chance.randint(1, 25)


def _meter(_: random.Random) -> None:
    metering_cycle.run()


def _change_at_random(chance: random.Random, node: QuotaNode) -> None:
    def maybe(most: int) -> int | None:
        return None if chance.random() < 0.5 else chance.randint(0, most)

    QuotaGrant.objects.filter(node=node).delete()
    for accelerator in ACCELERATORS:
        if chance.random() < 0.6:
            QuotaGrant.objects.create(
                node=node, accelerator=accelerator, nominal=chance.randint(0, 6),
                borrow_limit=maybe(6), lend_limit=maybe(6),
            )  # fmt: skip
    node.max_running_jobs = None if chance.random() < 0.7 else chance.randint(1, 5)
    node.max_slots = None if chance.random() < 0.7 else chance.randint(2, 12)
    node.save()


def _log_tree() -> None:
    """The whole tree as it is from now on, in the transaction that makes it so."""
    grants: dict[str, dict[str, list[int | None]]] = {}
    for grant in QuotaGrant.objects.all():
        grants.setdefault(grant.node_id, {})[grant.accelerator] = [grant.nominal, grant.borrow_limit, grant.lend_limit]
    tree = [
        {"id": node.id, "parent": node.parent_id, "grants": grants.get(node.id, {}), "team": node.team_id,
         "running": node.max_running_jobs, "slots": node.max_slots}
        for node in QuotaNode.objects.all()
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {LOG_TABLE} VALUES (%s, %s)", [timezone.now().timestamp(), json.dumps(tree)])


def _any(rows: Any) -> Any:
    return rows.order_by("?").first()


def check() -> dict[str, Any]:
    """Replay the log: each admission against what was held and allowed at its instant."""
    problems, counts = _replay()
    problems += _ends_agree() + _decisions_repeat() + _budgets_held()
    return {**counts, "problems": problems}


def _trees() -> list[tuple[float, Tree, dict[str, str]]]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT time, tree FROM {LOG_TABLE} ORDER BY time")
        rows = [(moment, json.loads(tree) if isinstance(tree, str) else tree) for moment, tree in cursor.fetchall()]
    found = []
    for moment, tree in rows:
        nodes = [
            Node(
                row["id"],
                row["parent"],
                {name: Granted(*grant) for name, grant in row["grants"].items()},
                row["running"],
                row["slots"],
            )
            for row in tree
        ]
        found.append((moment, Tree(nodes), {row["team"]: row["id"] for row in tree if row["team"]}))
    return found


def _replay() -> tuple[list[str], dict[str, int]]:
    facts = {job.id: job for job in Job.objects.select_related("pool")}
    pools = {pool.id: pool.slots - pool.spare_slots for pool in Pool.objects.all()}
    changes: list[tuple[float, int, Any]] = [(moment, 0, (tree, leaves)) for moment, tree, leaves in _trees()]
    for event in JobEvent.objects.filter(type="job.status").order_by("time", "seq"):
        holds_before = JobStatus(event.data["from"]) in HOLDING
        holds_now = JobStatus(event.data["to"]) in HOLDING
        if holds_before != holds_now:
            changes.append(((event.time - EPOCH).total_seconds(), 2 if holds_now else 1, event))
    changes.sort(key=lambda change: change[:2])
    counts = {"admitted": 0, "finished": 0, "reclaimed": 0, "edits": -1}
    held: dict[str, Held] = {}
    problems: list[str] = []
    tree, leaves = Tree([]), {}
    for _, kind, change in changes:
        if kind == 0:
            tree, leaves = change
            counts["edits"] += 1
            continue
        job = facts[change.job_id]
        if kind == 1:
            del held[job.id]
            counts["finished"] += 1
            counts["reclaimed"] += change.data.get("reason") == "reclaimed"
            continue
        slots = min(job.slots, pools[job.pool_id])
        new = Held(job.id, leaves[job.team_id], job.pool_id, job.pool.accelerator, slots)
        problems += admission_problems(tree, pools, list(held.values()), new)
        held[job.id] = new
        counts["admitted"] += 1
    now = set(Job.objects.filter(status__in=[status.value for status in HOLDING]).values_list("id", flat=True))
    if now != held.keys():
        problems.append(f"the log says {sorted(held)} hold slots, the rows say {sorted(now)}")
    return problems, counts


def _ends_agree() -> list[str]:
    """What is held is what live attempts hold, and what was admitted and has no attempt yet."""
    live = set(
        Attempt.objects.filter(status__in=[status.value for status in ATTEMPT_LIVE]).values_list("job", flat=True)
    )
    ended = set(Attempt.objects.exclude(job__in=live).values_list("job", flat=True))
    problems = []
    for job in Job.objects.filter(status__in=[status.value for status in HOLDING]):
        waits_for_attempt = job.status == JobStatus.ADMITTED.value
        waits_for_finalise = job.id in ended
        if job.id not in live and not waits_for_attempt and not waits_for_finalise:
            problems.append(f"{job.id} is {job.status} and has no attempt")
    holding = set(Job.objects.filter(status__in=[status.value for status in HOLDING]).values_list("id", flat=True))
    problems += [f"{job_id} has a live attempt and holds nothing" for job_id in live - holding]
    return problems


def _budgets_held() -> list[str]:
    """The books balance; at no line was more reserved than there was; only what holds slots has a reservation."""
    problems = ledger.check()
    left: Counter[int] = Counter()
    for line in Transfer.objects.order_by("id"):
        left[line.period_id] += line.amount * ((line.credit == "allowance") - (line.debit == "allowance"))
        if line.kind == Transfer.Kind.RESERVE and left[line.period_id] < 0:
            problems.append(f"line {line.pk} reserves for {line.job_id} what period {line.period_id} has not got")
    held = set(Reservation.objects.filter(amount__gt=0).values_list("job", flat=True))
    holding = set(Job.objects.filter(status__in=[status.value for status in HOLDING]).values_list("id", flat=True))
    problems += [f"{job_id} has a reservation and holds nothing" for job_id in held - holding]
    return problems


def _decisions_repeat() -> list[str]:
    """A few stored decisions, made again from what was stored."""
    problems = []
    for cycle in AdmissionCycle.objects.order_by("?")[:5]:
        other = stored_cycles.differences(cycle)
        if other:
            problems.append(f"cycle {cycle.pk} decides otherwise when made again: {other}")
    return problems
