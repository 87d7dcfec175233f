"""The `athanor` command: which subcommands there are."""

import importlib.metadata
from typing import Annotated

import typer

from athanor.cli import (
    account,
    alerts,
    audit,
    budgets,
    checkpoints,
    clusters,
    conversion,
    costs,
    datasets,
    deletions,
    efficiency,
    event_files,
    following,
    goodput,
    jobs,
    lineage,
    merging,
    model_documentation,
    model_import,
    models,
    preflight,
    profiles,
    projects,
    quotas,
    registry,
    replays,
    signatures,
    signing_keys,
    simulate,
    support_bundle,
    team_secrets,
    teams,
    times,
    tokens,
    usage_report,
    webhooks,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(importlib.metadata.version("athanor"))
        raise typer.Exit


app = typer.Typer(
    name="athanor",
    help="Training as a service: submit jobs, watch them, fetch the models they make.\n\n"
    "Exit codes: 0 success (also when `watch --timeout` ends), 1 job failed or expired, 2 usage or refused spec, "
    "3 not authenticated or not allowed, 4 not found, 5 server unreachable or failed, or a damaged download, "
    "6 job cancelled, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    utc: Annotated[bool, typer.Option("--utc", help="Print times in UTC instead of the local time zone.")] = False,
) -> None:
    """Options before the command."""
    if utc:
        times.show_utc()


app.command("login")(account.login)
app.command("submit")(jobs.submit)
app.command("list")(jobs.list_jobs)
app.command("show")(jobs.show)
app.command("goodput")(goodput.goodput)
app.command("efficiency")(efficiency.efficiency)
app.command("preflight")(preflight.preflight)
app.command("cancel")(jobs.cancel)
app.command("pause")(jobs.pause)
app.command("resume")(jobs.resume)
app.command("retry")(jobs.retry)
app.command("fork")(jobs.fork)
app.command("profile")(profiles.profile)
app.command("tensorboard")(event_files.tensorboard)
app.command("presets")(jobs.presets)
app.command("watch")(following.watch_job)
app.command("logs")(following.logs)
app.command("download")(models.download)
app.command("generate")(models.generate)
app.command("delete")(deletions.delete)
app.add_typer(
    deletions.app, name="trash", help="Deleted items: list, restore, purge, certificates.", no_args_is_help=True
)
app.add_typer(
    checkpoints.app,
    name="checkpoint",
    help="Checkpoints: list, mark as damaged or intact, retire.",
    no_args_is_help=True,
)
app.command("verify")(replays.verify)
app.command("lineage")(lineage.lineage)
registry.app.command("convert")(conversion.convert)
registry.app.command("merge")(merging.merge)
registry.app.command("import")(model_import.import_folder)
registry.app.command("document")(model_documentation.document)
registry.app.command("sign")(models.sign)
registry.app.command("verify")(signatures.verify)
app.add_typer(registry.app, name="model", help="Registered models: versions, aliases and cards.", no_args_is_help=True)
app.add_typer(signing_keys.app, name="signing-key", help="Keys that sign a team's models.", no_args_is_help=True)
app.add_typer(datasets.app, name="dataset", help="Data sets: text for training.", no_args_is_help=True)
app.command("support-bundle")(support_bundle.support_bundle)
app.command("queue")(quotas.queue)
app.command("costs")(costs.costs)
app.command("usage-report")(usage_report.usage_report)
app.command("simulate")(simulate.simulate)
app.add_typer(quotas.app, name="quota", help="The quota tree: slots and limits of teams.", no_args_is_help=True)
app.add_typer(teams.app, name="team", help="Teams: limits, members and invitations.", no_args_is_help=True)
app.add_typer(teams.invitations_app, name="invitation", help="Invitations that name you.", no_args_is_help=True)
app.add_typer(projects.app, name="project", help="Projects: groups of a team's jobs.", no_args_is_help=True)
app.add_typer(tokens.app, name="token", help="API tokens: create, rotate, revoke.", no_args_is_help=True)
app.add_typer(
    tokens.accounts_app, name="service-account", help="Accounts for programs of a team.", no_args_is_help=True
)
app.add_typer(
    alerts.app,
    name="alert",
    help="Alerts: rules on jobs, budgets and storage, your inbox, and what you get by mail.",
    no_args_is_help=True,
)
app.add_typer(
    webhooks.app, name="webhook", help="Webhooks: addresses that a team's events are sent to.", no_args_is_help=True
)
app.add_typer(audit.app, name="audit", help="The audit trail: who changed what.", no_args_is_help=True)
app.add_typer(
    team_secrets.app, name="secret", help="Team secrets, and the servers they may be sent to.", no_args_is_help=True
)
app.add_typer(budgets.app, name="budget", help="Budgets: spending limits and statements.", no_args_is_help=True)
app.add_typer(
    clusters.app, name="cluster", help="Clusters, pools and nodes: add, check, drain, quarantine.", no_args_is_help=True
)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
