"""Who prepares a data set: of all attempts that need it by the same recipe, one does, and the others wait for it.

The claim is a lease (core/leases.py) that the attempt's agent renews. It ends with the registration of the result, when
the agent releases it, when its attempt ends, or when it expires. The token of the lease must come with the
registration: an attempt that continues after another attempt took over registers nothing, and what it stored is deleted
as unreferenced.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from athanor.artifacts import datasets, manifests
from athanor.artifacts.models import PreparationClaim, PreparedDataset
from athanor.core import leases
from athanor.core.errors import Conflict, Forbidden, Invalid
from athanor.jobs.models import Attempt
from athanor.jobs.states import AttemptStatus
from athanor.specs.v1 import JobSpec
from trainer.contract.manifest import DatasetManifest
from trainer.contract.recipe import dataset_recipes
from trainer.contract.run import PreparationRelease, PreparationReply, PreparationRequest

LEASE_SECONDS = 30.0
RENEW_SECONDS = 8.0


def check_dataset(attempt: Attempt, dataset_id: str) -> None:
    """Raise Forbidden unless the attempt's job uses the data set."""
    if dataset_id not in attempt.job.dataset_ids:
        detail = f"{dataset_id} is no data set of {attempt.job_id}"
        raise Forbidden("foreign_dataset", detail, remedy="read the data sets of the job's spec only")


def claim(attempt: Attempt, asked: PreparationRequest) -> PreparationReply:
    """Grant or renew the claim of a recipe, or return what its holder made of it.

    Raise Forbidden for a data set, and Invalid for a recipe, that the job does not use.
    """
    check_dataset(attempt, asked.dataset_id)
    known = datasets.known_preparation(asked.dataset_id, asked.recipe)
    if known is not None:
        return _prepared(known)
    recipe = {"dataset_id": asked.dataset_id, "recipe": asked.recipe}
    if asked.helps:
        return _answer_helper(attempt, PreparationClaim.objects.filter(**recipe).first())
    if not PreparationClaim.objects.filter(**recipe).exists():
        _check_recipe(attempt, asked)
    with transaction.atomic():
        PreparationClaim.objects.get_or_create(**recipe, defaults={"attempt": attempt})
        row = PreparationClaim.objects.select_for_update(no_key=True, of=("self",)).filter(**recipe).first()
        known = datasets.known_preparation(asked.dataset_id, asked.recipe)  # again, under the lock
        if known is not None:
            PreparationClaim.objects.filter(**recipe).delete()  # the row may be one that was made above, too late
            return _prepared(known)
        if row is None:  # registered, and forgotten since
            return PreparationReply(state="wait", job_id=attempt.job_id)
        return _answer(attempt, row, asked)


def release(attempt: Attempt, asked: PreparationRelease) -> None:
    """End a claim. Its error in the data, if there is one, is reported to the attempts that exist by now."""
    rows = PreparationClaim.objects.filter(
        dataset_id=asked.dataset_id, recipe=asked.recipe, attempt=attempt, lease_token=asked.token
    )
    failed_at = Now() if asked.data_error else None
    rows.update(lease_token=None, lease_until=None, data_error=asked.data_error, failed_at=failed_at)


@contextmanager
def finishing(manifest: DatasetManifest, token: UUID | None) -> Iterator[None]:
    """Open a transaction that registers `manifest`, and end the claim with it.

    Raise Conflict if `token` no longer holds the claim, unless exactly this manifest is registered already.
    """
    recipe = {"dataset_id": manifest.dataset_id, "recipe": manifest.recipe}
    with transaction.atomic():
        row = PreparationClaim.objects.select_for_update(no_key=True, of=("self",)).filter(**recipe).first()
        if token is not None and (row is None or row.lease_token != token):
            known = datasets.known_preparation(manifest.dataset_id, manifest.recipe)
            if known is None or known.manifest != manifest.model_dump(mode="json"):
                raise Conflict(
                    "preparation_lost",
                    f"the claim {token} of {manifest.dataset_id} has expired, and another attempt has taken over",
                    remedy="ask POST /preparations:claim again, and use what it prepared",
                )
        yield
        PreparationClaim.objects.filter(**recipe).delete()


def _answer_helper(attempt: Attempt, row: PreparationClaim | None) -> PreparationReply:
    """Return where a node can help the first one of its attempt; it waits in any case."""
    if row is None:
        return PreparationReply(state="wait", job_id=attempt.job_id)
    if _has_failed_for(attempt, row):
        return _failed(row)
    store = row.store if row.attempt_id == attempt.id and row.lease_token is not None else None
    return PreparationReply(state="wait", job_id=row.attempt.job_id, store=store or None)


def _answer(attempt: Attempt, row: PreparationClaim, asked: PreparationRequest) -> PreparationReply:
    """Grant, renew or refuse the claim of a locked row."""
    rows = PreparationClaim.objects.filter(pk=row.pk)
    if asked.token is not None:
        if row.lease_token != asked.token:
            return PreparationReply(state="wait", job_id=row.attempt.job_id)
        # Nobody has taken over, even if it has expired.
        rows.update(lease_until=Now() + timedelta(seconds=LEASE_SECONDS), store=asked.store or "")
        return PreparationReply(state="prepare", token=asked.token, renew_seconds=RENEW_SECONDS)
    if _has_failed_for(attempt, row):
        return _failed(row)
    # An attempt that asks again has lost its reply, or its agent was started again.
    if row.attempt_id == attempt.id or row.attempt.status == AttemptStatus.ENDED.value:
        rows.update(lease_token=None, lease_until=None)
    for lease in leases.claim(rows, seconds=LEASE_SECONDS, limit=1):
        rows.update(attempt=attempt, store="", data_error="", failed_at=None)
        return PreparationReply(state="prepare", token=lease.token, renew_seconds=RENEW_SECONDS)
    return PreparationReply(state="wait", job_id=row.attempt.job_id)


def _has_failed_for(attempt: Attempt, row: PreparationClaim) -> bool:
    return row.failed_at is not None and attempt.created_at <= row.failed_at


def _failed(row: PreparationClaim) -> PreparationReply:
    return PreparationReply(state="failed", job_id=row.attempt.job_id, because=row.data_error)


def _prepared(row: PreparedDataset) -> PreparationReply:
    return PreparationReply(state="prepared", job_id=row.job_id, prepared=manifests.of_preparation(row))


def _check_recipe(attempt: Attempt, asked: PreparationRequest) -> None:
    job = attempt.job
    spec = JobSpec.model_validate(job.resolved_spec)
    pairs = zip(job.dataset_ids, dataset_recipes(spec.data.parts, spec.tokenizer, job.dataset_ids), strict=True)
    if (asked.dataset_id, asked.recipe) not in pairs:
        raise Invalid(
            "foreign_recipe",
            f"recipe {asked.recipe} of {asked.dataset_id} is none of {attempt.job_id}",
            remedy="use the trainer of this platform's version",
        )
