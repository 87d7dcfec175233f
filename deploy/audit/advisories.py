"""Read the list of known-bad versions and compare pins, a lock file and installed packages with it."""

import json
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

REPOSITORY = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("advisories.json")
LOCK_FILE = REPOSITORY / "frontend" / "package-lock.json"
PINS = (REPOSITORY / "constraints.txt", *sorted((REPOSITORY / "deploy" / "images" / "hashes").glob("*.txt")))
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Advisory:
    """One advisory: the versions of a package that it affects, as alternative sets of specifiers."""

    ecosystem: str
    package: str
    id: str
    affected: tuple[SpecifierSet, ...]
    fixed_in: tuple[str, ...]

    def affects(self, version: str) -> bool:
        """Return whether a version is affected. A pre-release is before its release, which PEP 440's `<` excludes."""
        try:
            parsed = Version(version)
        except InvalidVersion:
            parsed = Version(re.split(r"[-+]", version)[0])
        return any(
            all(COMPARISONS[one.operator](parsed, Version(one.version)) for one in specifiers)
            for specifiers in self.affected
        )


@dataclass(frozen=True)
class Package:
    """A version of a package, and where it was found."""

    ecosystem: str
    name: str
    version: str
    source: str


def read(path: Path = LIST) -> list[Advisory]:
    """Return the list of known-bad versions."""
    return [
        Advisory(
            row["ecosystem"],
            row["package"],
            row["id"],
            tuple(SpecifierSet(text) for text in row["affected"]),
            tuple(row["fixed_in"]),
        )
        for row in json.loads(path.read_text())["advisories"]
    ]


def pinned(paths: Iterable[Path] = PINS) -> Iterator[Package]:
    """Yield the pins (`name==version`) of constraints and requirements files."""
    for path in paths:
        for name, version in PIN.findall(path.read_text()):
            yield Package("PyPI", canonicalize_name(name), version, path.name)


def locked(path: Path = LOCK_FILE) -> Iterator[Package]:
    """Yield the packages of a package-lock.json, nested ones too."""
    for place, found in json.loads(path.read_text())["packages"].items():
        if place and "version" in found:
            yield Package("npm", found.get("name", place.rpartition("node_modules/")[2]), found["version"], path.name)


def installed() -> Iterator[Package]:
    """Yield the packages of this Python environment."""
    for distribution in metadata.distributions():
        yield Package("PyPI", canonicalize_name(distribution.name), distribution.version, "installed")


def findings(packages: Iterable[Package], advisories: Iterable[Advisory]) -> list[str]:
    """Return a line for each package that an advisory affects: where it is, and the version that fixes it."""
    by_name: dict[tuple[str, str], list[Advisory]] = {}
    for advisory in advisories:
        by_name.setdefault((advisory.ecosystem, advisory.package), []).append(advisory)
    return [
        f"{package.source}: {package.name} {package.version} is affected by {advisory.id}: "
        f"use {' or '.join(advisory.fixed_in) or 'another package: no version fixes it'}"
        for package in packages
        for advisory in by_name.get((package.ecosystem, package.name), ())
        if advisory.affects(package.version)
    ]
