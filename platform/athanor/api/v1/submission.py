"""Validate and authorise a submission; for submit, plan, fork and retry."""

from typing import Any

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal
from athanor.api.access import team_to_write
from athanor.jobs.models import Job


def team_of_spec(principal: Principal, written: Any) -> Team:
    """Return the team that a spec names, or the only team of the caller. Raises Invalid or Forbidden."""
    name = written.get("team") if isinstance(written, dict) else None
    return team_to_write(principal, name if isinstance(name, str) else None)


def with_same_base(written: dict[str, Any], original: Job) -> dict[str, Any]:
    """Return a written spec with the base model of the original, if it names a registered version, and with the job of
    which it exports a checkpoint.

    An alias may have been moved since.
    """
    if written.get("export"):  # a name may be that of several jobs by now
        return {**written, "export": {**written["export"], "job": original.resolved_spec["export"]["job"]}}
    evaluation = written.get("evaluation") or {}
    if "@" in (evaluation.get("model") or ""):
        base = original.resolved_spec["training"]["model"]["base"]
        return {**written, "evaluation": {**evaluation, "model": base}}
    model = (written.get("training") or {}).get("model") or {}
    if "@" not in (model.get("base") or ""):
        return written
    base = original.resolved_spec["training"]["model"]["base"]
    training = written["training"]
    return {**written, "training": {**training, "model": {**model, "base": base}}}


def apply_merge_patch(original: Any, changes: Any) -> Any:
    """Return `original` with the JSON merge patch applied (RFC 7396)."""
    if not isinstance(changes, dict):
        return changes
    result = dict(original) if isinstance(original, dict) else {}
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result
