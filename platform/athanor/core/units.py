"""Durations and sizes as people write them: `2h`, `1d 12h`, `40 GiB`, `500 MB`."""

import re

DURATIONS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
SIZES = {
    "PiB": 2**50, "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10,
    "PB": 10**15, "TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1,
}  # fmt: skip
_SIZES_BY_NAME = {name.lower(): size for name, size in SIZES.items()}
_BINARY = [(name, size) for name, size in SIZES.items() if name.endswith("iB")]
_DURATION_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([dhms])", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """Return the seconds of a text such as `90m`, `1d 12h` or `3600`. Raises ValueError with an example."""
    rest = text.strip()
    if rest.isascii() and rest.isdigit():
        return int(rest)
    total, place = 0.0, 0
    while found := _DURATION_PART.match(rest, place):
        total += float(found[1]) * DURATIONS[found[2].lower()]
        place = found.end()
    if place == 0 or rest[place:].strip():
        raise ValueError(f"{text!r} is not a duration; write it like 90m, 2h or 1d 12h, or in seconds")
    return round(total)


def parse_size(text: str) -> int:
    """Return the bytes of a text such as `40 GiB`, `500 MB` or `1024`. Raises ValueError with an example."""
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZES_BY_NAME.get((found[2] or "B").lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is not a size; write it like 40 GiB or 500 MB, or in bytes")
    return round(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit


def duration_text(seconds: int) -> str:
    """Return a duration exactly, in the units that it has: `1d 12h`."""
    parts = []
    for unit, size in DURATIONS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def size_text(count: int) -> str:
    """Return a size exactly, in the largest unit in which it has at most two decimals: `1.5 GiB`."""
    for name, size in _BINARY:
        if count >= size and count * 100 % size == 0:
            whole, hundredths = divmod(count * 100 // size, 100)
            return f"{whole}{f'.{hundredths:02d}'.rstrip('0') if hundredths else ''} {name}"
    return f"{count} B"
