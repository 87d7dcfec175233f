"""Read the interruption notice of a spot machine.

The cluster's profile names the place: a file that a script of the node creates, or a metadata address on the node that
answers with a text other than empty, `NONE` or `FALSE`.
"""

import logging
from pathlib import Path

import httpx

logger = logging.getLogger(__name__)

READ_TIMEOUT_SECONDS = 1.0  # a metadata address on the node answers immediately or never
MAX_NOTICE_CHARACTERS = 200
NO_NOTICE = frozenset({"", "NONE", "FALSE"})


def read_interruption_notice(place: str) -> str:
    """Return the first 200 characters of the notice; empty if there is none, it cannot be read, or `place` is empty."""
    if not place:
        return ""
    try:
        text = _fetch(place) if "://" in place else _read(Path(place))
    except (httpx.HTTPError, OSError) as error:
        logger.debug("cannot read the interruption notice at %s: %s", place, error)
        return ""
    notice = text.replace("\x00", "").strip()[:MAX_NOTICE_CHARACTERS]
    return "" if notice.upper() in NO_NOTICE else notice


def _fetch(address: str) -> str:
    headers = {"Metadata-Flavor": "Google"}  # required by Google's metadata server, ignored by others
    answer = httpx.get(address, headers=headers, timeout=READ_TIMEOUT_SECONDS, trust_env=False)
    return answer.text if answer.status_code == httpx.codes.OK else ""


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_text(errors="replace")[:MAX_NOTICE_CHARACTERS] or "the notice file exists"
