"""`python -m trainer.simulation`: simulated goodput of long runs with failures, in tables."""

import argparse
import sys
from dataclasses import fields

from trainer.simulation import report
from trainer.simulation.inputs import NOTES, Ground, Inputs, overridden

TABLES = ("size", "interval", "tiers", "spares", "restart", "published")


def main() -> int:
    """Print the tables that were asked for. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.simulation",
        description="Simulate failures, checkpoints and recovery of a long run in virtual time. No run of these sizes "
        "was measured: each row says what it stands on.",
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--gpus", type=int, default=16_384, help="of the tables other than size (default: 16384)")
    parser.add_argument("--days", type=float, default=54.0, help="length of the run (default: 54)")
    parser.add_argument("--seeds", type=int, default=5, help="runs with other failures (default: 5)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another value of an input; none: unset it"
    )
    parser.add_argument("--inputs", action="store_true", help="list the inputs and what they stand on, and exit")
    arguments = parser.parse_args()
    if wrong := [name for name in arguments.tables if name not in TABLES]:
        parser.error(f"{wrong[0]!r} is none of {', '.join(TABLES)}")
    if arguments.gpus < 1 or arguments.seeds < 1 or arguments.days <= 0:
        parser.error("--gpus and --seeds must be 1 or more, and --days above 0")
    try:
        given = dict(_read(text) for text in arguments.set)
        inputs = overridden(Inputs(), **given)
    except ValueError as error:
        parser.error(f"--set {error}")
    if arguments.inputs:
        _write(_input_lines(inputs, set(given)))
        return 0
    for name in arguments.tables or TABLES:
        if name == "published":
            _write(["Beside published figures:", *report.compared_lines(report.compared(inputs, arguments.seeds)), ""])
            continue
        size = "by size" if name == "size" else f"{arguments.gpus:,} GPUs, by {name}"
        rows = report.table(name, arguments.gpus, arguments.days, inputs, arguments.seeds)
        _write([f"{arguments.days:g} days, {size}:", *report.lines(rows), ""])
    return 0


def _read(text: str) -> tuple[str, float | int | bool | None]:
    """Return name and value of `NAME=VALUE`. Raise ValueError."""
    name, _, value = text.partition("=")
    known = {each.name: each for each in fields(Inputs)}
    if name not in known:
        raise ValueError(f"{text!r}: {name!r} is none of {', '.join(known)}")
    if value == "none":
        return name, None
    kind = known[name].type
    if kind is bool or kind == "bool":
        if value not in ("true", "false"):
            raise ValueError(f"{text!r}: write true or false")
        return name, value == "true"
    try:
        return name, int(value) if kind is int or kind == "int" else float(value)
    except ValueError:
        raise ValueError(f"{text!r}: {value!r} is no number") from None


def _input_lines(inputs: Inputs, given: set[str]) -> list[str]:
    found = []
    for name, (ground, note) in NOTES.items():
        value = getattr(inputs, name)
        shown = "-" if value is None else f"{value:,.6g}" if isinstance(value, float) else str(value)
        ground = Ground.GIVEN if name in given else ground
        found.append(f"{name:24} {shown:>10}  {ground:10} {'' if name in given else note}".rstrip())
    return found


def _write(lines: list[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
