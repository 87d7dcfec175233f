"""cluster list, show, add, pool, probe, nodes, drain, quarantine and their opposites, enable, disable.

All but list and show need a token with the scope `platform:clusters`, of a platform administrator.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli import node_preflights
from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.render import columns, console, print_json, size
from athanor.cli.spec_file import read_spec

app = typer.Typer(rich_markup_mode=None)
ClusterName = Annotated[str, typer.Argument(help="Name or id of the cluster.", metavar="CLUSTER")]
NodeName = Annotated[str, typer.Argument(help="Node name, as in `athanor cluster nodes`.", metavar="NODE")]
Reason = Annotated[str, typer.Option("--reason", help="Shown to users who open this node.")]
COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "ready": "green", "drained": "yellow", "down": "red"}


@app.command("list")
@reports_errors
def list_clusters(as_json: AsJson = False) -> None:
    """List the clusters with their slots and usage."""
    found = connect().get("/clusters")["items"]
    if as_json:
        print_json(found)
        return
    table = columns("name", "kind", "state", "nodes", "slots", "pools")
    for cluster in found:
        table.add_row(
            cluster["name"], cluster["kind"], _health(cluster), str(cluster["nodes"]["total"]), _slots(cluster),
            ", ".join(pool["name"] for pool in cluster["pools"]),
        )  # fmt: skip
    console.print(table)


@app.command("show")
@reports_errors
def show(cluster: ClusterName, as_json: AsJson = False) -> None:
    """Show a cluster and its pools; administrators also see the last health check."""
    client = connect()
    found = _find(client, cluster)
    if as_json:
        print_json(found)
        return
    nodes = found["nodes"]
    console.print(f"[bold]{found['name']}[/bold]  {found['id']}  {found['kind']}  {_health(found)}")
    states = [f"{nodes[state]} {state}" for state in ("ready", "drained", "down", "unknown") if nodes[state]]
    quarantined = f", {nodes['quarantined']} in quarantine" if nodes["quarantined"] else ""
    console.print(f"nodes: {', '.join(states) or 'none are known'}{quarantined}")
    for each in found["pools"]:
        console.print(_pool_line(each))
    setup = found["setup"]
    if setup is None:
        return
    for each in setup["proposed_pools"]:
        nodes = f"{each['nodes']} nodes of {each['slots_per_node']} {escape(each['accelerator'])}"
        console.print(
            f"its nodes suggest pool {each['name']}, {nodes}: `athanor cluster pool {found['name']} {each['name']}`"
        )
    for node in setup["suspects"]:
        console.print(f"[yellow]look at[/yellow] {node}: several jobs failed on it recently")
    if setup["nodes_problem"]:
        console.print(f"[red]nodes are not listed[/red]: {escape(setup['nodes_problem'])}")
    for problem in setup["config_problems"]:
        console.print(f"[red]{escape(problem['pointer'])}[/red]: {escape(problem['detail'])}")
    if setup["probe"]:
        _print_findings(setup["probe"], client.url)


@app.command("add")
@reports_errors
def add(
    file: Annotated[
        Path, typer.Argument(help="YAML or JSON with name, kind, config and optionally enabled (default: true).")
    ],
    check: Annotated[bool, typer.Option("--check", help="Only check the configuration; store nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register a cluster and check its health. The configuration holds no secrets: it names files of the server."""
    client = connect()
    body = read_spec(file)
    if check:
        asked = {field: body[field] for field in ("name", "kind", "config") if field in body}
        found = client.post("/clusters:check", asked)
        if as_json:
            print_json(found)
        else:
            _print_findings(found, client.url)
        raise typer.Exit(ExitCode.JOB_FAILED if found["usable"] is False else 0)
    made = client.post("/clusters", body)
    found = client.post(f"/clusters/{made['id']}:probe") if "probe" in made["setup"]["capabilities"] else None
    if as_json:
        print_json(client.get(f"/clusters/{made['id']}"))
        return
    console.print(f"{made['name']} is registered as {made['id']}  {client.url}/clusters/{made['id']}", soft_wrap=True)
    if found:
        _print_findings(found, client.url)


@app.command("pool")
@reports_errors
def pool(
    cluster: ClusterName,
    name: Annotated[str, typer.Argument(help="Name of the pool; a pool that the nodes suggest needs no options.")],
    accelerator: Annotated[
        str | None, typer.Option(help="Accelerator name used in specs; for cpu, slots are cores.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=0)] = None,
    spare_nodes: Annotated[
        int | None, typer.Option(min=0, help="How many of the nodes stay free of jobs, to replace lost ones.")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Of one node.")] = None,
    memory_gib: Annotated[float | None, typer.Option(min=0.1, help="Host memory of one node.")] = None,
    accelerator_memory_gib: Annotated[
        float | None, typer.Option(min=0.1, help="Memory of one accelerator; without it jobs are not checked for it.")
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Price per slot-hour.")] = None,
    test: Annotated[
        bool, typer.Option(help="After the first pool of a cluster, test a free node, as `athanor preflight` does.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Create or change a pool of a cluster."""
    client = connect()
    found = _find(client, cluster)
    proposed = [each for each in (found["setup"] or {}).get("proposed_pools", []) if each["name"] == name]
    said = {
        "accelerator": accelerator,
        "nodes": nodes,
        "spare_nodes": spare_nodes,
        "slots_per_node": slots,
        "memory_bytes": None if memory_gib is None else round(memory_gib * 2**30),
        "accelerator_memory_bytes": None if accelerator_memory_gib is None else round(accelerator_memory_gib * 2**30),
        "price_per_slot_hour": None if price is None else str(price),
    }
    body = {**(proposed[0] if proposed else {}), **{key: value for key, value in said.items() if value is not None}}
    made = client.put(f"/clusters/{found['id']}/pools/{name}", {k: v for k, v in body.items() if k != "name"})
    if as_json:
        print_json(made)
        return
    console.print(_pool_line(made))
    if test and not found["pools"] and found["kind"] != "local":
        place = f"/clusters/{found['id']}"
        node = node_preflights.free_node(client, place, [made["accelerator"]])
        console.print(f"node {escape(node)} is tested; --no-test leaves it out", highlight=False)
        rows = node_preflights.measure(client, f"{place}/nodes/{node}")
        node_preflights.print_preflights(rows[:1])
        raise typer.Exit(0 if rows[0]["outcome"] == "ok" else ExitCode.JOB_FAILED)


@app.command("probe")
@reports_errors
def probe(cluster: ClusterName, as_json: AsJson = False) -> None:
    """Check the health of a cluster now. Exits with 1 if jobs cannot run there."""
    client = connect()
    found = client.post(f"{cluster_path(client, cluster)}:probe")
    if as_json:
        print_json(found)
    else:
        _print_findings(found, client.url)
    raise typer.Exit(0 if found["usable"] else ExitCode.JOB_FAILED)


@app.command("nodes")
@reports_errors
def nodes(
    cluster: ClusterName,
    state: Annotated[
        str | None, typer.Option(help="Only nodes in this state: ready, drained, down, unknown, quarantined.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a cluster's nodes."""
    client = connect()
    found = list(client.pages(f"{cluster_path(client, cluster)}/nodes", state=state))
    if as_json:
        print_json(found)
        return
    table = columns("name", "state", "accelerator", "used", "memory", "groups", "score", "why")
    for node in found:
        quarantine = f"quarantine by {node['quarantined_by']}: {node['quarantine_reason']}"
        table.add_row(
            node["name"],
            _coloured(node["state"]) + ("" if node["listed"] else " (not listed)"),
            escape(node["accelerator"]),
            f"{node['slots_used']}/{node['slots']}",
            size(node["memory_bytes"]),
            escape(",".join(node["pools"])),
            _score_of(node),
            escape(quarantine if node["quarantined_at"] else node["reason"] or _reasons_of(node)),
        )
    console.print(table)


def _score_of(node: Any) -> str:
    found = node.get("score")  # an older server has none
    if not found or not found["reasons"]:
        return ""
    standing = "" if found["standing"] == "good" else f" {found['standing']}"
    return f"{found['value']:.2f}{standing}"


def _reasons_of(node: Any) -> str:
    reasons = (node.get("score") or {"reasons": []})["reasons"]
    return ", ".join(f"{each['kind']} of {each['jobs']} job{'' if each['jobs'] == 1 else 's'}" for each in reasons)


@app.command("drain")
@reports_errors
def drain(cluster: ClusterName, node: NodeName, reason: Reason, as_json: AsJson = False) -> None:
    """Drain a node by the cluster's own means: it starts nothing new. Running jobs continue."""
    _act(cluster, node, "drain", {"reason": reason}, as_json=as_json)


@app.command("undrain")
@reports_errors
def undrain(cluster: ClusterName, node: NodeName, as_json: AsJson = False) -> None:
    """Return a drained node to service."""
    _act(cluster, node, "undrain", None, as_json=as_json)


@app.command("quarantine")
@reports_errors
def quarantine(cluster: ClusterName, node: NodeName, reason: Reason, as_json: AsJson = False) -> None:
    """Start no new attempts on a node until it is released, whatever its state in the cluster."""
    _act(cluster, node, "quarantine", {"reason": reason}, as_json=as_json)


@app.command("release")
@reports_errors
def release(cluster: ClusterName, node: NodeName, as_json: AsJson = False) -> None:
    """End a node's quarantine."""
    _act(cluster, node, "release", None, as_json=as_json)


@app.command("preflights")
@reports_errors
def preflights(
    cluster: ClusterName,
    every_hours: Annotated[
        int | None, typer.Option(min=0, help="Measure each node that is free again after so many hours; 0 for never.")
    ] = None,
    after_incidents: Annotated[
        bool | None, typer.Option(help="Measure a node that is free after an incident that this can confirm.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show or set when free nodes are measured without a job. `athanor preflight --node` measures one now."""
    client = connect()
    changes: dict[str, Any] = {}
    if every_hours is not None:
        changes["preflight_every_hours"] = every_hours or None
    if after_incidents is not None:
        changes["preflight_after_incidents"] = after_incidents
    path = cluster_path(client, cluster)
    found = client.patch(path, changes) if changes else client.get(path)
    setup = found["setup"]
    if setup is None:
        raise CliError(ExitCode.AUTHENTICATION, "only platform administrators see how a cluster is set up")
    if as_json:
        print_json({key: setup[key] for key in ("preflight_after_incidents", "preflight_every_hours")})
        return
    hours = setup["preflight_every_hours"]
    console.print(f"after incidents: {'yes' if setup['preflight_after_incidents'] else 'no'}")
    console.print("at an interval: " + (f"every {hours} hours" if hours else "never"))


@app.command("enable")
@reports_errors
def enable(cluster: ClusterName, as_json: AsJson = False) -> None:
    """Admit jobs to a cluster again."""
    _switch(cluster, enabled=True, as_json=as_json)


@app.command("disable")
@reports_errors
def disable(cluster: ClusterName, as_json: AsJson = False) -> None:
    """Stop admitting jobs to a cluster; running jobs continue."""
    _switch(cluster, enabled=False, as_json=as_json)


def _find(client: Client, cluster: str) -> Any:
    return client.get(cluster_path(client, cluster))


def cluster_path(client: Client, cluster: str) -> str:
    """Return the API path of a cluster by name or id."""
    found = client.get("/clusters")["items"]
    for each in found:
        if cluster in (each["name"], each["id"]):
            return f"/clusters/{each['id']}"
    names = ", ".join(each["name"] for each in found) or "none"
    raise CliError(ExitCode.NOT_FOUND, f"no cluster {cluster!r}: there is {names}")


def _act(cluster: str, node: str, act: str, body: Any, *, as_json: bool) -> None:
    client = connect()
    found = client.post(f"{cluster_path(client, cluster)}/nodes/{node}:{act}", body)
    if as_json:
        print_json(found)
        return
    suffix = ", in quarantine" if found["quarantined_at"] else ""
    console.print(f"{found['name']}: {_coloured(found['state'])}{suffix}")
    if found.get("notice"):
        console.print(f"[yellow]{escape(found['notice'])}[/yellow]")


def _switch(cluster: str, *, enabled: bool, as_json: bool) -> None:
    client = connect()
    found = client.patch(cluster_path(client, cluster), {"enabled": enabled})
    if as_json:
        print_json(found)
    else:
        console.print(f"{found['name']}: {_health(found)}")


def _print_findings(probe: Any, server_url: str) -> None:
    if probe["usable"] is None:
        console.print("clusters of this kind have no health check")
        return
    verdict = "[green]jobs can run[/green]" if probe["usable"] else "[red]jobs cannot run[/red]"
    console.print(f"{verdict}  {escape(probe['version'])}")
    for finding in probe["findings"]:
        level = finding["level"]
        console.print(f"  {_coloured(level)}{' ' * (8 - len(level))}{finding['check']}: {escape(finding['detail'])}")
        if finding["remedy"]:
            console.print(f"          {escape(finding['remedy'])}")
        if finding.get("runbook"):  # absent from older servers
            console.print(f"          runbook: {server_url}{finding['runbook']}", soft_wrap=True)


def _pool_line(pool: Any) -> str:
    spare = f" ({pool['spare_nodes']} spare)" if pool.get("spare_nodes") else ""  # absent from older servers
    return (
        f"pool {pool['name']}: {pool['slots_used']} of {pool['slots']} slots used, {pool['nodes']} nodes{spare} of "
        f"{pool['slots_per_node']} {escape(pool['accelerator'])}, {size(pool['memory_bytes'])} each"
    )


def _health(cluster: Any) -> str:
    if not cluster["enabled"]:
        return "[yellow]disabled[/yellow]"
    if cluster["usable"] is None:
        return "not checked"
    return "[green]usable[/green]" if cluster["usable"] else "[red]not usable[/red]"


def _slots(cluster: Any) -> str:
    rows = [f"{row['slots_used']}/{row['slots']} {row['accelerator']}" for row in cluster["capacity"]]
    return escape(", ".join(rows))


def _coloured(word: str) -> str:
    colour = COLOURS.get(word)
    return f"[{colour}]{word}[/{colour}]" if colour else word
