"""`python -m deploy.audit`: compare dependencies with the list of known-bad versions, or refresh the list."""

import argparse
import sys
from datetime import UTC, datetime

from deploy.audit import advisories, refresh
from deploy.local.errors import StackError


def main() -> int:
    """Print what is affected, and return 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m deploy.audit", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["check", "refresh"], default="check")
    if parser.parse_args().command == "refresh":
        try:
            added = refresh.refresh(datetime.now(UTC).date().isoformat())
        except StackError as error:
            print(f"athanor: {error}", file=sys.stderr)
            return 1
        print(f"added {len(added)} advisories: {', '.join(added) or 'none'}")
    packages = [*advisories.pinned(), *advisories.locked(), *advisories.installed()]
    known = advisories.read()
    found = advisories.findings(packages, known)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(packages)} packages compared with {len(known)} advisories: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
