"""The bill of materials of a model version, in the format of CycloneDX 1.6 (ML-BOM).

https://cyclonedx.org/docs/1.6/json. It has what the platform has on record and sections of the model's card; what is
not known is left out.
"""

from typing import Any
from uuid import NAMESPACE_URL, uuid5

from athanor.accounts.selectors import Principal
from athanor.artifacts.lineage import Node
from athanor.artifacts.models import EvaluationResult, ModelVersion
from athanor.compliance.card_sections import card_sections
from athanor.compliance.training_history import Run, history_of, manifest_of
from trainer.contract.data import PREFERENCE_FORMATS
from trainer.contract.manifest import StoredFile

GRAMS_PER_TONNE = 1_000_000
Json = dict[str, Any]


def bom_of(principal: Principal, version: ModelVersion) -> Json:
    """Return the bill of materials of a version of a model of the caller's teams, as the records are now.

    Raise Conflict for an export of which the manifest is not what was registered.
    """
    history = history_of(principal, version)
    runs = history.runs
    datasets = {node.id: node for run in runs for node in run.datasets}
    frameworks = {each["bom-ref"]: each for run in runs for each in _frameworks_of(run)}
    model = _model(version, runs)
    if history.limits:
        model["properties"] += [_property("not_on_record", limit) for limit in history.limits]
    bases = [_base(run) for run in runs[1:]]
    references = [model["bom-ref"], *(each["bom-ref"] for each in bases)] if runs else []
    bases_of = [*([each["bom-ref"]] for each in bases), []] if runs else []
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'{version.model_id}@{version.number}')}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "athanor"}]},
            "component": model,
        },
        "components": [*bases, *(_dataset(node, runs) for node in datasets.values()), *frameworks.values()],
        "dependencies": [
            {"ref": reference, "dependsOn": sorted({*(node.id for node in run.datasets), *base, *_programs(run)})}
            for reference, run, base in zip(references, runs, bases_of, strict=True)
        ],
    }


def _model(version: ModelVersion, runs: list[Run]) -> Json:
    manifest, sections = manifest_of(version.artifact), card_sections(version.model.card)
    imported = [_property("origin", "imported, not trained here"), _property("artifact", version.artifact_id)]
    card: Json = {
        "modelParameters": _parameters(runs) if runs else {},
        "quantitativeAnalysis": {
            "performanceMetrics": [
                *({"type": name, "value": f"{value:.6g}"} for name, value in sorted(manifest.metrics.items())),
                *map(_metric, version.evaluations),
            ]
        },
        "considerations": _considerations(sections, runs),
    }
    found: Json = {
        "type": "machine-learning-model",
        "bom-ref": f"{version.model_id}@{version.number}",
        "name": version.model.name,
        "version": str(version.number),
        "modelCard": card,
        "components": [_file(file) for file in sorted(manifest.files, key=lambda each: each.path)],
        "properties": [_property("sha256_of_manifest", version.digest), *(_properties(runs[0]) if runs else imported)],
    }
    if sections.get("licence"):
        found["licenses"] = [{"license": {"name": sections["licence"]}}]
    return found


def _parameters(runs: list[Run]) -> Json:
    newest = runs[0]
    return {
        "approach": {"type": _approach(newest)},
        "task": "text-generation",
        "architectureFamily": "transformer",
        "modelArchitecture": "decoder-only transformer"
        + (", mixture of experts" if newest.training.model.resolve().moe else ""),
        "datasets": [{"ref": node.id} for run in runs for node in run.datasets],
        "inputs": [{"format": "text"}],
        "outputs": [{"format": "text"}],
    }


def _file(file: StoredFile) -> Json:
    found: Json = {"type": "file", "name": file.path, "properties": [_property("size_bytes", file.size)]}
    if file.plaintext_sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": file.plaintext_sha256}]
    return found


def _metric(row: EvaluationResult) -> Json:
    found: Json = {"type": f"{row.name}.{row.metric}", "value": f"{row.value:.6g}", "slice": row.source}
    if row.low is not None and row.high is not None:
        found["confidenceInterval"] = {"lowerBound": f"{row.low:.6g}", "upperBound": f"{row.high:.6g}"}
    return found


def _considerations(sections: dict[str, str], runs: list[Run]) -> Json:
    found: Json = {}
    if sections.get("intended use"):
        found["useCases"] = [sections["intended use"]]
    if sections.get("limitations"):
        found["technicalLimitations"] = [sections["limitations"]]
    used = [each for run in runs if (each := _energy(run)) is not None]
    if used:
        found["environmentalConsiderations"] = {"energyConsumptions": used}
    return found


def _energy(run: Run) -> Json | None:
    energy = run.energy
    if energy.kwh is None:
        return None
    measure = {"value": energy.kwh, "unit": "kWh"}
    found: Json = {
        "activity": "training" if run.training.model.is_new else "fine-tuning",
        # The format requires a provider; the platform does not know it.
        "energyProviders": [{"organization": {}, "energySource": "unknown", "energyProvided": measure}],
        "activityEnergyCost": measure,
        "properties": [
            _property("job", run.job.id),
            _property("kwh_measured", energy.measured_kwh),
            _property("kwh_estimated", energy.estimated_kwh),
            _property("slot_seconds_not_known", energy.unknown_slot_seconds),
        ],
    }
    if energy.carbon_slot_seconds:
        found["co2CostEquivalent"] = {"value": energy.grams / GRAMS_PER_TONNE, "unit": "tCO2eq"}
    return found


def _approach(run: Run) -> str:
    formats = {part.format for part in run.training.data.parts}
    return "supervised" if formats & {"chat", *PREFERENCE_FORMATS} else "self-supervised"


def _base(run: Run) -> Json:
    return {
        "type": "machine-learning-model", "bom-ref": run.artifact.id, "name": run.artifact.name,
        "properties": _properties(run),
    }  # fmt: skip


def _properties(run: Run) -> list[Json]:
    """Return what the format has no fields for: how and at which cost a run trained."""
    found = [
        _property("job", run.job.id),
        _property("artifact", run.artifact.id),
        _property("sha256_of_resolved_spec", run.job.spec_digest),
        _property("method", run.method),
        _property("parameters_exported", run.manifest.num_parameters),
        _property("step", run.manifest.step),
        _property("tokens", run.tokens),
        _property("flops", run.tokens * run.flops_per_token),
    ]
    if run.exporter is not None:
        exported = ("exported_checkpoint", run.exported_checkpoint), ("exported_by", run.exporter.id)
        found += [_property(name, value) for name, value in exported]
    return found


def _dataset(node: Node, runs: list[Run]) -> Json:
    found: Json = {"type": "data", "bom-ref": node.id, "name": node.name, "data": [{"type": "dataset"}]}
    properties = [_property("state", node.state)]
    if node.digest is not None:
        properties += [_property("sha256_of_manifest", node.digest), _property("size_bytes", node.row.size_bytes)]
    forms = {form.id: (form, manifest) for run in runs for form, manifest in run.tokenised(node)}
    for form, manifest in forms.values():
        properties += [
            _property(f"{form.id}:sha256_of_manifest", form.digest),
            _property(f"{form.id}:documents", manifest.documents),
            _property(f"{form.id}:tokens_to_train_on", manifest.train_tokens),
            _property(f"{form.id}:tokens_held_out", manifest.validation_tokens),
        ]
    return {**found, "properties": properties}


def _programs(run: Run) -> list[str]:
    return [each["bom-ref"] for each in _frameworks_of(run)]


def _frameworks_of(run: Run) -> list[Json]:
    torch_version, software = run.torch_version, run.software
    found = [_torch(torch_version)] if torch_version else []
    if "trainer_sha256" in software:
        found.append(_trainer(software))
    return found


def _trainer(software: dict[str, str]) -> Json:
    digest, version = software["trainer_sha256"], software.get("trainer", "unknown")
    others = [
        _property(f"version_of_{name}", software[name]) for name in ("python", "cuda", "nccl") if name in software
    ]
    return {
        "type": "application", "bom-ref": f"athanor-trainer@{digest}", "name": "athanor-trainer", "version": version,
        "properties": [_property("sha256_of_source", digest), *others],
    }  # fmt: skip


def _torch(torch_version: str) -> Json:
    # A local version such as +cpu is a qualifier of the build, not of the package.
    public = torch_version.partition("+")[0]
    return {
        "type": "framework", "bom-ref": f"torch@{torch_version}", "name": "torch", "version": torch_version,
        "purl": f"pkg:pypi/torch@{public}",
    }  # fmt: skip


def _property(name: str, value: object) -> Json:
    return {"name": f"athanor:{name}", "value": str(value)}
