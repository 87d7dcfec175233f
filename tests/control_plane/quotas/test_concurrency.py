"""Concurrent submissions, quota changes and admission: no deadlock, no limit exceeded, no lost update."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from athanor.accounts.models import AuditEvent, Team, User
from athanor.artifacts import quota_checks
from athanor.clusters.models import Pool
from athanor.core.errors import AthanorError
from athanor.jobs import services as jobs
from athanor.jobs.models import Job
from athanor.quotas import changes, services
from athanor.quotas.models import QuotaNode
from athanor.quotas.tree import NodeChange
from athanor.scheduling import services as scheduling
from athanor.specs.validation import parse_spec
from tests.control_plane.conftest import SPEC

ROUNDS = 12
WAITING = 9


def wish(**fields: Any) -> Callable[..., Any]:
    return partial(changes.changed, changes=[NodeChange.model_validate(fields)])


@pytest.mark.django_db(transaction=True)
def test_everybody_at_once(user: User, team: Team, other_team: Team, pool: Pool, submit: Callable[..., Job]) -> None:
    submit(name="first")
    services.change_tree(wish(node="a", action="create", max_queued_jobs=100), user)
    services.change_tree(wish(node="b", action="create", max_queued_jobs=100, max_storage_bytes=10**12), user)
    services.change_tree(wish(node="organisation", max_queued_jobs=WAITING, max_storage_bytes=10**12), user)
    services.change_tree(wish(node="red", max_queued_jobs=100, max_storage_bytes=10**12), user)
    barrier, failures, most = threading.Barrier(7), [], []

    def submitter(of: Team, number: int) -> None:
        spec = parse_spec({**SPEC, "name": f"n{number}"})
        submission = jobs.Submission(user=user, team=of, pool=pool, dataset_ids=["dset_0"], written=SPEC, spec=spec)
        jobs.submit(submission, None, quota_checks.check)

    def mover(number: int) -> None:
        services.change_tree(wish(node="red", parent="ab"[number % 2], max_running_jobs=number + 1), user)

    def weigher(number: int) -> None:
        services.change_limits(other_team, {"max_slots": number + 1}, user)

    def admitter(number: int) -> None:
        scheduling.admit()
        most.append(Job.objects.filter(status="queued").count())

    def rounds(work: Callable[[int], object]) -> None:
        barrier.wait()
        try:
            for number in range(ROUNDS):
                try:
                    work(number)
                except AthanorError as refusal:
                    if refusal.code != "queue_full":
                        raise
        except Exception as error:  # noqa: BLE001 - a thread's error must reach the test
            failures.append(error)
        finally:
            connection.close()

    works = [*(partial(submitter, each) for each in (team, other_team, team, other_team)), mover, weigher, admitter]
    threads = [threading.Thread(target=rounds, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert max(most) <= WAITING
    assert Job.objects.filter(status="queued").count() <= WAITING
    red, blue = QuotaNode.objects.get(team=team), QuotaNode.objects.get(team=other_team)
    assert (red.parent.name, red.max_running_jobs, blue.max_slots) == ("b", ROUNDS, ROUNDS)  # type: ignore[union-attr]
    assert AuditEvent.objects.filter(action="quota.change", target_id=red.id).count() == 1 + ROUNDS
    assert AuditEvent.objects.filter(action="quota.change", target_id=blue.id).count() == ROUNDS
    assert QuotaNode.objects.get(parent=None).version == 1 + 4 + 2 * ROUNDS
