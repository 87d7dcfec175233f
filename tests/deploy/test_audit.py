"""Known-bad versions of dependencies: none is pinned, locked or installed, and each way to miss one is closed."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from deploy.audit import advisories, refresh
from deploy.audit.advisories import Advisory, Package
from deploy.local.errors import StackError

KNOWN = advisories.read()


def test_no_known_bad_version_is_pinned_locked_or_installed() -> None:
    packages = [*advisories.pinned(), *advisories.locked(), *advisories.installed()]
    assert advisories.findings(packages, KNOWN) == []


def test_all_pins_and_all_locked_packages_are_compared() -> None:
    lines = (advisories.REPOSITORY / "constraints.txt").read_text().split()
    assert [found.name for found in advisories.pinned()][: len(lines)] == [
        advisories.canonicalize_name(line.split("==")[0]) for line in lines
    ]
    assert len(lines) == len({line.lower() for line in lines}), "a package is pinned twice"
    names = {found.name for found in advisories.locked()}
    manifest = json.loads((advisories.REPOSITORY / "frontend" / "package.json").read_text())
    assert set(manifest["dependencies"]) | set(manifest["devDependencies"]) <= names
    assert {"django", "psycopg"} <= {found.name for found in advisories.installed()}


@pytest.mark.parametrize("advisory", KNOWN, ids=lambda advisory: f"{advisory.package}-{advisory.id}")
def test_an_entry_names_an_advisory_and_its_fix_is_not_affected(advisory: Advisory) -> None:
    assert re.fullmatch(r"CVE-\d{4}-\d{4,}|GHSA(-[0-9a-z]{4}){3}|PYSEC-\d{4}-\d+", advisory.id)
    assert advisory.ecosystem in ("PyPI", "npm")
    assert advisory.affected
    for version in advisory.fixed_in:
        assert not advisory.affects(version)
        upper = [spec.version for range_ in advisory.affected for spec in range_ if spec.operator == "<"]
        assert version in upper
    if advisory.fixed_in:
        newest = max(Version(version) for version in advisory.fixed_in)
        assert not advisory.affects(f"{newest.major + 1}.0")


def test_a_planted_version_is_found_wherever_it_is(tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("Jinja2==3.1.5\nh11==0.14.0 \\\n    --hash=sha256:00\nurllib3==2.8.0\n")
    lock = tmp_path / "package-lock.json"
    nested = {"version": "0.24.2"}
    lock.write_text(json.dumps({"packages": {"": {}, "node_modules/vite/node_modules/esbuild": nested}}))
    found = advisories.findings([*advisories.pinned([pins]), *advisories.locked(lock)], KNOWN)
    assert found == [
        "constraints.txt: jinja2 3.1.5 is affected by CVE-2025-27516: use 3.1.6",
        "constraints.txt: h11 0.14.0 is affected by CVE-2025-43859: use 0.16.0",
        "package-lock.json: esbuild 0.24.2 is affected by GHSA-67mh-4wv8-2f99: use 0.25.0",
    ]
    assert advisories.findings([Package("npm", "h11", "0.14.0", "x")], KNOWN) == [], "another ecosystem's package"


@pytest.mark.parametrize(
    ("version", "affected"),
    [("4.5.9", True), ("4.5.10", False), ("5.4.14", True), ("6.2.3-beta.1", True), ("6.2.3", False), ("8.3.8", False)],
)
def test_ranges_have_gaps(version: str, affected: bool) -> None:
    (vite,) = [advisory for advisory in KNOWN if advisory.package == "vite"]
    assert vite.affects(version) is affected


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, answer: Any, code: int) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\nexit {code}\n")
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_refresh_adds_what_pip_audit_and_npm_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flaw = {"id": "PYSEC-2026-1471", "aliases": ["CVE-2026-99999"], "fix_versions": ["8.9"]}
    report = {"dependencies": [{"name": "click", "version": "8.5.1", "vulns": [flaw]}]}
    program(tmp_path, monkeypatch, "pip-audit", report, 1)
    via = {"name": "ws", "url": "https://github.com/advisories/GHSA-aaaa-bbbb-cccc", "range": ">=8.0.0 <8.2.1 || <7.1"}
    program(tmp_path, monkeypatch, "npm", {"vulnerabilities": {"ws": {"via": [via]}, "vite": {"via": ["ws"]}}}, 1)
    copy = tmp_path / "advisories.json"
    shutil.copy(advisories.LIST, copy)
    monkeypatch.setattr(refresh, "LIST", copy)
    assert sorted(refresh.refresh("2026-12-01")) == ["CVE-2026-99999", "GHSA-aaaa-bbbb-cccc"]
    added = [advisory for advisory in advisories.read(copy) if advisory not in KNOWN]
    assert [(advisory.package, advisory.fixed_in) for advisory in added] == [("click", ("8.9",)), ("ws", ())]
    assert [added[1].affects(version) for version in ("8.2.0", "8.2.1", "7.0.9", "7.2")] == [True, False, True, False]
    assert json.loads(copy.read_text())["checked"] == "2026-12-01"
    assert refresh.refresh("2026-12-01") == [], "the same again"


def test_a_report_that_examined_nothing_is_no_clean_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a mirror without advisories pip-audit skips every package, exits with 0 and reports none."""
    program(tmp_path, monkeypatch, "pip-audit", {"dependencies": [{"name": "django", "skip_reason": "not found"}]}, 0)
    with pytest.raises(StackError, match="could not examine 1 packages of .*, such as django"):
        refresh.refresh("2026-12-01")
    program(tmp_path, monkeypatch, "npm", {"message": "405 Method Not Allowed", "statusCode": 405}, 1)
    with pytest.raises(StackError, match="405 Method Not Allowed"):
        refresh.ask_npm_audit()
