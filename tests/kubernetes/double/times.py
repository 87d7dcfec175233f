"""Times and quantities, as the API writes them."""

import re
from datetime import datetime

SUFFIXES = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def seconds_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def amount(quantity: str | int | float) -> float:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(quantity))
    assert found is not None, quantity
    return float(found[1]) * SUFFIXES[found[2]]
