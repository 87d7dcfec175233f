"""Quantities of resources in the notation of the API: 1500m, 64Gi, 8."""

import re

SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
QUANTITY = re.compile(r"(?P<number>[+-]?[0-9.]+)((?P<suffix>[numkMGTPE]i?|Ki)?|[eE](?P<power>[+-]?[0-9]+))")


def amount(quantity: str | float) -> float:
    """Return a quantity as a number. Raise ValueError for what is not one."""
    found = QUANTITY.fullmatch(str(quantity))
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity")
    return float(found["number"]) * (10.0 ** int(found["power"]) if found["power"] else SUFFIXES[found["suffix"] or ""])
