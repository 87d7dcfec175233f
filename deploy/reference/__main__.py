"""`python -m deploy.reference`: write the pages of docs/reference."""

from collections.abc import Callable
from pathlib import Path

from deploy.reference.api import api_page
from deploy.reference.cli import cli_page
from deploy.reference.errors import errors_page
from deploy.reference.events import events_page
from deploy.reference.metrics import metrics_page
from deploy.reference.models import models_page
from deploy.reference.spec import spec_page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "spec.md": spec_page,
    "cli.md": cli_page,
    "api.md": api_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "models.md": models_page,
    "metrics.md": metrics_page,
}


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
