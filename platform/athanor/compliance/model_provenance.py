"""The provenance of a model version, in the format of SLSA (https://slsa.dev/spec/v1.0/provenance), signed.

It describes the job that trained the version, and names the job that exported a checkpoint of it.
What its base models were made of is in their provenance.
"""

from typing import Any

from django.conf import settings

from athanor.accounts.selectors import Principal
from athanor.artifacts import signing_keys
from athanor.artifacts.lineage import Kind
from athanor.artifacts.models import ModelVersion
from athanor.compliance.training_history import Run, history_of
from athanor.core.errors import Conflict

BUILD_TYPE = "docs/how-to/document-a-model/#what-a-provenance-states"
Json = dict[str, Any]


def signed_provenance_of(principal: Principal, version: ModelVersion) -> Json:
    """Return the provenance of a version of a model of the caller's teams, signed by the team's active key.

    Raise Conflict for an imported version, and for an export of which the manifest is not what was registered, or does
    not contain the digests of its files.
    """
    runs = history_of(principal, version).runs
    if not runs:
        remedy = "`athanor model sign` signs its files; who made them has to state how"
        raise Conflict("not_trained_here", f"{version} was imported: how it was made is not on record", remedy=remedy)
    return signing_keys.sign_provenance(version.artifact, _predicate(runs[0]), principal.user)


def _predicate(run: Run) -> Json:
    job, attempt, checkpoint = run.job, run.attempt, run.newest_checkpoint
    url = settings.ATHANOR.public_url
    described: Json = {"sha256_of_resolved_spec": job.spec_digest, "resolved_spec": job.resolved_spec}
    described |= {"attempt": attempt.number, "method": run.method, "step": run.manifest.step, "tokens": run.tokens}
    described |= {"flops": run.tokens * run.flops_per_token, "accelerator": job.pool.accelerator}
    described |= {"kwh": run.energy.kwh, "exported_checkpoint": run.exported_checkpoint}
    described |= {"exported_by": run.exporter.id if run.exporter else None, "software": run.software or None}
    if checkpoint is not None:
        described |= {"mesh": checkpoint.mesh, "processes": checkpoint.world_size}
    return {
        "buildDefinition": {
            "buildType": f"{url}/{BUILD_TYPE}",
            "externalParameters": {"spec": job.spec},
            "internalParameters": {name: value for name, value in described.items() if value is not None},
            "resolvedDependencies": [*_data(run, url), *_base(run, url), *_framework(run)],
        },
        "runDetails": {
            "builder": {"id": url},
            "metadata": {
                "invocationId": f"{url}/api/v1/jobs/{job.id}",
                "startedOn": attempt.started_at.isoformat() if attempt.started_at else None,
                "finishedOn": attempt.ended_at.isoformat() if attempt.ended_at else None,
            },
        },
    }


def _data(run: Run, url: str) -> list[Json]:
    found = []
    for node in run.datasets:
        found.append(_resource(node.name, f"{url}/api/v1/datasets/{node.id}", node.digest))
        found += [
            _resource(f"{node.name}, tokenised", f"{url}/api/v1/lineage?of={form.id}", form.digest)
            for form, _ in run.tokenised(node)
        ]
    return found


def _base(run: Run, url: str) -> list[Json]:
    base = run.training.model.base
    if base is None:
        return []
    node = next((node for node in run.data if node.kind is Kind.MODEL), None)
    uri = base if node is None else f"{url}/api/v1/artifacts/{node.id}"
    return [_resource(base, uri, node.digest if node else None)]


def _framework(run: Run) -> list[Json]:
    version = run.torch_version
    if version is None:
        return []
    return [_resource(f"torch {version}", f"pkg:pypi/torch@{version.partition('+')[0]}", None)]


def _resource(name: str, uri: str, digest: str | None) -> Json:
    """Return a resource. `digest`: of its manifest on the platform, which lists digests of its content."""
    found: Json = {"name": name, "uri": uri}
    return found if digest is None else {**found, "digest": {"athanorManifestSha256": digest}}
