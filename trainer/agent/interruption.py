"""Whether the provider of a spot machine has said that it takes the machine back.

Where to look the cluster's profile says: a file that appears (a script of the node writes it), or an address on the
node that answers with something else than nothing, `NONE` or `FALSE`.
"""

import logging
from pathlib import Path

import httpx

logger = logging.getLogger(__name__)

READ_TIMEOUT_SECONDS = 1.0  # an address on the node answers immediately, or not at all
MAX_NOTICE_CHARACTERS = 200
NO_NOTICE = frozenset({"", "NONE", "FALSE"})


def read_interruption_notice(place: str) -> str:
    """Return the text of the notice; empty if there is none, or if `place` is empty."""
    if not place:
        return ""
    try:
        text = _fetched(place) if "://" in place else _read(Path(place))
    except (httpx.HTTPError, OSError) as error:
        logger.debug("cannot read the interruption notice at %s: %s", place, error)
        return ""
    said = text.replace("\x00", "").strip()[:MAX_NOTICE_CHARACTERS]
    return "" if said.upper() in NO_NOTICE else said


def _fetched(address: str) -> str:
    headers = {"Metadata-Flavor": "Google"}  # without it Google's answers nothing; others do not mind
    answer = httpx.get(address, headers=headers, timeout=READ_TIMEOUT_SECONDS, trust_env=False)
    return answer.text if answer.status_code == httpx.codes.OK else ""


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_text(errors="replace")[:MAX_NOTICE_CHARACTERS] or "the notice file exists"
