"""`python -m deploy.monitoring`: write the alert rules and the dashboards, by default those of this repository."""

import argparse
import json
from pathlib import Path

import yaml

from deploy.monitoring.alerts import rules_document
from deploy.monitoring.dashboards import DASHBOARDS, document

HERE = Path(__file__).resolve().parent
EXAMPLE_URL = "https://athanor.example.org"
RULES = "athanor.rules.yaml"


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(prog="python -m deploy.monitoring", description=__doc__)
    parser.add_argument("--url", default=EXAMPLE_URL, help="public address of the platform, for links to runbooks")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER", help="where to write them")
    chosen = parser.parse_args()
    for name, text in files(chosen.url).items():
        path = chosen.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def files(platform_url: str) -> dict[str, str]:
    """Return the text of each file, by its path."""
    heading = "# Written by `python -m deploy.monitoring`. Runbooks: docs/runbooks/alerts.\n"
    rules = yaml.safe_dump(rules_document(platform_url), sort_keys=False, width=110, allow_unicode=True)
    boards = {f"dashboards/{each.name}.json": json.dumps(document(each), indent=2) + "\n" for each in DASHBOARDS}
    return {RULES: heading + rules, **boards}


if __name__ == "__main__":
    main()
