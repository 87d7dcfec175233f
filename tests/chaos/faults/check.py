"""What must be true after every run of the fault kit, whatever happened in it."""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults.world import Finished, wait_for
from trainer.contract.encryption import DecryptionError, Encryptor, check_manifest
from trainer.contract.manifest import MANIFEST_NAME, CheckpointManifest, ModelManifest, StoredFile
from trainer.resilience.forking import fork_server_pid

TOLERANCE = 1e-5  # relative, of the loss with another size of micro-batches


@dataclass(frozen=True)
class Trained:
    """The rows of each step that counted, over all ranks, and how often each step was applied after the last time that
    it was rolled back."""

    rows: dict[int, Counter[str]]
    times: dict[int, int]


def trained(records: Path) -> Trained:
    """Read what the ranks recorded. A worker group that begins at a step rolls back what others did from there on."""
    groups: dict[str, dict[str, list[dict]]] = {}
    for path in sorted(records.glob("*.jsonl")):
        group, rank = path.stem[:6], path.stem[7:9]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        groups.setdefault(group, {}).setdefault(rank, []).extend(lines)
    rows: dict[int, Counter[str]] = {}
    times: dict[int, int] = {}
    for _, ranks in sorted(groups.items()):
        steps = [line["step"] for lines in ranks.values() for line in lines]
        if not steps:
            continue
        first = min(steps)
        rows = {step: found for step, found in rows.items() if step < first}
        times = {step: count for step, count in times.items() if step < first}
        for lines in ranks.values():
            for line in lines:
                if line["is_applied"]:
                    rows.setdefault(line["step"], Counter()).update(line["rows"])
        for step in set(steps):  # a step is applied by all ranks or, if one has failed, only until it is rolled back
            applied = [sum(line["step"] == step and line["is_applied"] for line in lines) for lines in ranks.values()]
            times[step] = max(applied)
    return Trained(rows, times)


def findings(run: Finished, undisturbed: Finished, *, is_exact: bool = True) -> list[str]:
    """Return what is wrong: empty if the run ended as the undisturbed one and left nothing. `is_exact`: equal bits."""
    return [
        *_losses(run, undisturbed, is_exact),
        *_samples(run, undisturbed),
        *_checkpoints(run),
        *(_model(run, undisturbed) if is_exact else []),
        *_reports(run),
        *_remains(run),
    ]


def _losses(run: Finished, undisturbed: Finished, is_exact: bool) -> list[str]:
    found, expected = run.losses, undisturbed.losses
    if found.keys() != expected.keys():
        return [f"steps with a loss: {sorted(found)} instead of {sorted(expected)}"]
    limit = 0.0 if is_exact else TOLERANCE
    apart = {step: abs(found[step] - loss) / loss for step, loss in expected.items()}
    wrong = [step for step, difference in apart.items() if not difference <= limit]
    return [f"the loss of steps {wrong} differs, by {max(apart.values()):.2g} of it at most"] if wrong else []


def _samples(run: Finished, undisturbed: Finished) -> list[str]:
    found, expected = trained(run.records), trained(undisturbed.records)
    total = sum(expected.rows.values(), Counter())
    problems = []
    if max(total.values()) > 1:
        problems.append("the undisturbed run has rows twice: choose fewer steps")
    if found.rows != expected.rows:
        steps = [step for step in expected.rows if found.rows.get(step) != expected.rows[step]]
        problems.append(f"the rows of steps {steps} are not those of the undisturbed run")
    if sum(found.rows.values(), Counter()) != total:
        problems.append("a sample was not used exactly once")
    twice = [step for step, count in found.times.items() if count != 1]
    return [*problems, *([f"steps {twice} were applied more than once"] if twice else [])]


def _checkpoints(run: Finished) -> list[str]:
    api, problems = run.api, []
    encryptor = Encryptor(api.keys.job)
    damaged = {(each["attempt_id"], each["generation"], each["step"]) for each in api.damaged}
    named = set()
    for record in [*api.checkpoints, *api.models]:
        is_model = "generation" not in record
        manifest = (ModelManifest if is_model else CheckpointManifest).model_validate(record)
        what = "model" if is_model else f"checkpoint of step {record['step']}"
        named.update(part.key for file in manifest.files for part in file.parts)
        if not is_model and (record["attempt_id"], record["generation"], record["step"]) in damaged:
            continue
        try:
            check_manifest(manifest, encryptor)
            for file in manifest.files:
                decrypted(api.objects, encryptor, file)
        except (DecryptionError, KeyError) as error:
            problems.append(f"the registered {what} is torn: {error}")
    # Parts without a manifest may remain only of worker groups that failed (the platform deletes them after a day).
    last = sorted(path.stem[:6] for path in run.records.glob("*.jsonl"))[-1]
    attempt, group = (int(number) for number in last.split("-"))
    for key in sorted(api.objects):
        folder = key.removeprefix(api.run.prefix).split("/")
        is_mine = folder[0] in ("checkpoints", "model") and folder[1].endswith(f"{attempt}-{group}")
        if is_mine and key not in named and not key.endswith(MANIFEST_NAME):
            problems.append(f"the last worker group left {key}, which no manifest names")
        is_final_group = folder[0] == "checkpoints" and key.endswith(MANIFEST_NAME)
        if is_final_group and not any(part.startswith(key.removesuffix(MANIFEST_NAME)) for part in named):
            problems.append(f"{key} was stored and not registered")
    if not api.checkpoints or api.checkpoints[-1]["step"] != max(run.losses, default=-1):
        problems.append("the last registered checkpoint is not that of the last step")
    return problems


def _model(run: Finished, undisturbed: Finished) -> list[str]:
    if not run.api.models:
        return ["no model was registered"]
    return [] if _weights(run) == _weights(undisturbed) else ["the exported weights differ from the undisturbed run's"]


def _weights(run: Finished) -> dict[str, str]:
    manifest, encryptor = ModelManifest.model_validate(run.api.models[-1]), Encryptor(run.api.keys.job)
    return {
        file.path: hashlib.sha256(decrypted(run.api.objects, encryptor, file)).hexdigest()
        for file in manifest.files
        if file.path.endswith(".safetensors")
    }


def decrypted(objects: dict[str, bytes], encryptor: Encryptor, file: StoredFile) -> bytes:
    """Return the content of a file. Raises DecryptionError; KeyError for a missing part."""
    return b"".join(encryptor.decrypt(objects[part.key], part) for part in file.parts)


def _reports(run: Finished) -> list[str]:
    """Each attempt has reported its end, and none has claimed an end other than its agent's exit status."""
    reported = [end["end_class"] for end in run.api.ends if end["node_rank"] == 0]
    missing = [end for end in run.ends if end.value not in reported]
    return [f"the agent ended with {end}, and did not report it: {reported}" for end in missing]


def _remains(run: Finished) -> list[str]:
    """Processes, files in shared memory, and files in the work folder of the attempt that was completed."""
    problems = []
    workers = {int(path.stem.rpartition("-")[2]) for path in run.records.glob("*.jsonl")}
    if not wait_for(lambda: not any(map(_is_alive, workers))):
        problems.append(f"ranks are still running: {sorted(filter(_is_alive, workers))}")
    server = fork_server_pid()
    if server is not None and not wait_for(lambda: not children(server)):
        problems.append(f"the fork server still has children: {children(server)}")
    for place in Path("/dev/shm").iterdir():
        if any(str(pid) in place.name.replace("-", "_").split("_") for pid in workers):
            problems.append(f"{place} is left in shared memory")
    for path in run.works[-1].rglob("*"):
        is_group = path.relative_to(run.works[-1]).parts[0].startswith("generation-")
        if path.is_file() and (path.suffix in (".partial", ".building") or "export" in path.parts):
            problems.append(f"{path.relative_to(run.works[-1])} is left in the work folder")
        elif path.is_file() and "spool" in path.parts and not is_group:
            problems.append(f"{path.name} was not delivered")
    return problems


def _is_alive(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return fields.rpartition(")")[2].split()[0] != "Z"


def children(pid: int) -> list[int]:
    """Return the running children of all threads of a process."""
    try:
        tasks = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for child in " ".join(tasks).split() if _is_alive(int(child))]
