"""Ask pip-audit and `npm audit` for advisories that affect today's pins, and add them to the list. Needs a network."""

import json
import subprocess
from pathlib import Path
from typing import Any

from deploy.audit.advisories import LIST, LOCK_FILE, PINS
from deploy.local.errors import StackError


def ask_pip_audit(pins: Path) -> list[dict[str, Any]]:
    """Return new entries for the pins of a file. Raise StackError unless pip-audit examined every one of them."""
    report = _run(["pip-audit", "--requirement", str(pins), "--no-deps", "--disable-pip", "--format", "json"], pins)
    skipped = [found["name"] for found in report["dependencies"] if "skip_reason" in found]
    if skipped:  # pip-audit reports "no known vulnerabilities" then, too
        raise StackError(
            f"pip-audit could not examine {len(skipped)} packages of {pins.name}, such as {skipped[0]}: "
            "use a network in which it reaches its service, or set PIP_AUDIT_VULNERABILITY_SERVICE=osv"
        )
    return [
        {
            "ecosystem": "PyPI",
            "package": found["name"],
            "id": next((alias for alias in flaw["aliases"] if alias.startswith("CVE-")), flaw["id"]),
            "affected": [f"=={found['version']}"],
            "fixed_in": flaw["fix_versions"],
        }
        for found in report["dependencies"]
        for flaw in found["vulns"]
    ]


def ask_npm_audit(folder: Path = LOCK_FILE.parent) -> list[dict[str, Any]]:
    """Return new entries for the lock file. Raise StackError if npm's registry gives no answer."""
    report = _run(["npm", "audit", "--package-lock-only", "--json"], folder, cwd=folder)
    if "vulnerabilities" not in report:
        raise StackError(f"npm audit got no advisories: {report.get('message') or report.get('error')}")
    return [
        {
            "ecosystem": "npm",
            "package": flaw["name"],
            "id": flaw["url"].rpartition("/")[2],
            "affected": [part.strip().replace(" ", ",") for part in flaw["range"].split("||")],
            "fixed_in": [],
        }
        for found in report["vulnerabilities"].values()
        for flaw in found["via"]
        if isinstance(flaw, dict)
    ]


def merge(document: dict[str, Any], found: list[dict[str, Any]], today: str) -> list[dict[str, Any]]:
    """Add entries to the document of the list, ordered; return those that are new to it."""
    known = {(row["ecosystem"], row["package"], row["id"]) for row in document["advisories"]}
    new = {(row["ecosystem"], row["package"], row["id"]): row for row in found}
    added = [row for key, row in new.items() if key not in known]
    document["advisories"] = sorted(
        [*document["advisories"], *added], key=lambda row: (row["ecosystem"], row["package"])
    )
    document["checked"] = today
    return added


def refresh(today: str) -> list[str]:
    """Bring the list up to date and return the ids of added advisories."""
    found = [entry for pins in PINS for entry in ask_pip_audit(pins)] + ask_npm_audit()
    document = json.loads(LIST.read_text())
    added = merge(document, found, today)
    rows = ",\n".join(f"    {json.dumps(row)}" for row in document["advisories"])
    LIST.write_text(f'{{\n  "checked": {json.dumps(document["checked"])},\n  "advisories": [\n{rows}\n  ]\n}}\n')
    return [row["id"] for row in added]


def _run(command: list[str], what: Path, cwd: Path | None = None) -> dict[str, Any]:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise StackError(f"{command[0]} is not installed: `pip install pip-audit`, or node with npm") from error
    try:  # both exit with 1 when they find something
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise StackError(f"{command[0]} gave no report about {what.name}", done.stdout + done.stderr) from error
    return report
