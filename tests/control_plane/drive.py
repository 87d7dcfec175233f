"""Drive jobs through the control plane without Celery: each call is one run of a reconciler."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F

from athanor.artifacts import keys
from athanor.artifacts.models import Artifact
from athanor.backends.fake.backend import World
from athanor.dispatch import finalise, observe, stop, submit
from athanor.jobs.models import Attempt, Job
from athanor.scheduling import services as scheduling
from athanor.telemetry import ingest
from athanor.telemetry.models import Heartbeat
from trainer.contract.encryption import authenticate
from trainer.contract.manifest import ModelManifest
from trainer.contract.run import AttemptEnd, EndClass
from trainer.contract.run import Heartbeat as HeartbeatMessage


def dispatch() -> None:
    submit.prepare_due()
    submit.submit_due()


def start(job: Job) -> Attempt:
    """Admit and submit a job, to STARTING."""
    scheduling.admit()
    dispatch()
    return attempt_of(job)


def run(job: Job) -> Attempt:
    """Move a job to RUNNING: its agent reports a finished step."""
    attempt = start(job)
    beat(attempt, step=1)
    observe.observe_due()
    return attempt_of(job)


def beat(attempt: Attempt, step: int) -> None:
    ingest.heartbeat(
        attempt, HeartbeatMessage(node_rank=0, generation=0, phase="training", step=step, processes_alive=1)
    )


def report(attempt: Attempt, end_class: EndClass, message: str = "") -> None:
    end = AttemptEnd(end_class=end_class, last_step=5, message=message, at=datetime.now(UTC))
    Attempt.objects.filter(pk=attempt.pk).update(end_report=end.model_dump(mode="json"))


def end(world: World, attempt: Attempt, end_class: EndClass, message: str = "") -> None:
    """Report the end of an attempt and let its process exit; the control plane observes both."""
    if end_class is EndClass.COMPLETED:
        register_model(attempt)
    report(attempt, end_class, message)
    world.finish(attempt.backend_name, 0)
    settle()


def time_passes(seconds: float) -> None:
    """Advance times that the database's clock measures: absence of attempts, silence of agents."""
    ago = timedelta(seconds=seconds)
    Attempt.objects.update(absent_since=F("absent_since") - ago)
    Heartbeat.objects.update(received_at=F("received_at") - ago)


def settle() -> None:
    observe.observe_due()
    stop.stop_due()
    finalise.finalise_due()


def register_model(attempt: Attempt, **metrics: Any) -> None:
    manifest = ModelManifest(
        job_id=attempt.job_id, attempt_id=attempt.id, step=5, num_parameters=1, created_at=datetime.now(UTC), files=[]
    )
    manifest = authenticate(manifest, keys.encryptor(attempt.job_id, attempt.job.team))
    Artifact.objects.create(
        job=attempt.job, attempt=attempt, kind="model", name="model", step=5, size_bytes=0,
        manifest=manifest.model_dump(mode="json"),
    )  # fmt: skip


def attempt_of(job: Job) -> Attempt:
    return Attempt.objects.filter(job=job).select_related("job__team", "job__pool__cluster").order_by("-number")[0]


def status_of(job: Job) -> tuple[str, str]:
    return Job.objects.values_list("status", "reason").get(pk=job.pk)
