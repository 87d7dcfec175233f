"""`athanor lineage`: what an object was made of, and what was made from it, as an indented tree."""

import re
from typing import Annotated, Any

import typer

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import find_dataset
from athanor.cli.options import AsJson, connect, find_job
from athanor.cli.plain import plain
from athanor.cli.registry import find_version
from athanor.cli.render import note, print_json

ID = re.compile(r"(dset|prep|rep|job|ckp|art)_[0-9A-Z]+|mdl_[0-9A-Z]+@.+")
DATASET, MODEL = "dataset:", "model:"
SOURCES = {
    "prepared_from": "tokenised from", "trained_on": "trained on", "prepares": "prepares",
    "report_on": "report on", "reports_on": "reports on", "base": "started from",
    "evaluated_on": "evaluated on", "replayed_on": "replayed on", "replays": "replays", "exports": "exports",
    "evaluates": "evaluates",
    "forked_from": "forked from", "made_by": "made by", "version_of": "version of", "alias_of": "alias of",
    "download_of": "download of",
}  # fmt: skip
PRODUCTS = {
    "prepared_from": "tokenised as", "trained_on": "trained", "prepares": "prepared by",
    "report_on": "reported on in", "reports_on": "reported on by", "base": "base of",
    "evaluated_on": "evaluated with", "replayed_on": "replayed with", "replays": "replayed by",
    "exports": "exported by",
    "evaluates": "evaluated by",
    "forked_from": "forked as", "made_by": "made", "version_of": "registered as", "alias_of": "named by",
    "download_of": "downloaded by",
}  # fmt: skip


@reports_errors
def lineage(
    reference: Annotated[
        str,
        typer.Argument(
            help="An id (job_..., art_..., ckp_..., dset_..., prep_..., rep_...), model:NAME@ALIAS, model:NAME@NUMBER "
            "(model:OWNER/NAME@... of a shared model), dataset:NAME (its newest version), dataset:NAME@NUMBER, "
            "dataset:NAME@ALIAS, or the name of a job.",
            metavar="OBJECT",
        ),
    ],
    up: Annotated[bool, typer.Option("--up", help="Only what it was made of.")] = False,
    down: Annotated[bool, typer.Option("--down", help="Only what was made from it.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of objects in each direction.")] = 200,
    depth: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of levels.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show what an object was made of, and what was made from it.

    Data sets, jobs, checkpoints, models, versions and aliases, deleted ones included; downloads for those who may read
    the audit trail.
    """
    if up and down:
        raise CliError(ExitCode.USAGE, "give --up or --down, or neither for both")
    client = connect()
    direction = "up" if up else "down" if down else "both"
    of = _identify(client, reference)
    found = client.get("/lineage", of=of, direction=direction, limit=limit, depth=depth)
    if as_json:
        print_json(found)
        return
    nodes = {node["id"]: node for node in found["nodes"]}
    print(plain(_describe(nodes[found["of"]])))
    if direction != "down":
        _show("Made of", _tree(found, nodes, "target_id", "source_id", SOURCES))
    if direction != "up":
        _show("Used for", _tree(found, nodes, "source_id", "target_id", PRODUCTS))
    raised = {"nodes": f"--limit {limit}", "depth": f"--depth {depth}"}
    limits = [raised[cut] for cut in found["cut"] if cut in raised]
    if limits:
        note(f"There may be more: cut at {' and '.join(limits)}.")
    if "team" in found["cut"]:
        note("It leads to a model of another team. What that was made of is not shown.")


def _identify(client: Client, reference: str) -> str:
    """Return the id of what a user names. Raises CliError for what is not there, or a model without a version."""
    if reference.startswith(MODEL):
        name = reference.removeprefix(MODEL)
        if "@" not in name:
            detail = f"which version of {name!r}? give model:{name}@ALIAS; `athanor model show {name}` lists them"
            raise CliError(ExitCode.USAGE, detail)
        version = find_version(client, name)
        return f"{version['model']['id']}@{version['number']}"
    if reference.startswith(DATASET):
        return str(find_dataset(client, reference.removeprefix(DATASET))["id"])
    return reference if ID.fullmatch(reference) else find_job(client, reference)


def _tree(found: Any, nodes: dict[str, Any], near: str, far: str, words: dict[str, str]) -> list[str]:
    """Return the lines below the object. What is reached twice is described once, and named by its id after that."""
    lines: list[str] = []
    seen = {found["of"]}

    def descend(identifier: str, depth: int) -> None:
        for edge in found["edges"]:
            if edge[near] != identifier:
                continue
            other = edge[far]
            named = f" (as {edge['reference']})" if edge["reference"] else ""
            if other in seen:
                lines.append(f"{'  ' * depth}{words[edge['relation']]} {other}{named}, which is above")
                continue
            seen.add(other)
            lines.append(f"{'  ' * depth}{words[edge['relation']]} {_describe(nodes[other])}{named}")
            descend(other, depth + 1)

    descend(found["of"], 1)
    return lines


def _describe(node: Any) -> str:
    digest = f"  sha256:{node['digest'][:12]}" if node["digest"] else ""
    if node["kind"] == "download":
        return str(node["name"])
    name = f" {node['name']}" if node["name"] and node["name"] != node["id"] else ""
    return f"{node['kind']}{name}  {node['id']}  {node['state']}{digest}"


def _show(title: str, lines: list[str]) -> None:
    print(f"{title}:" if lines else f"{title}: nothing on record")
    for line in lines:
        print(plain(line))
