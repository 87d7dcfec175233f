"""The resources of the API: the tags by which the OpenAPI document groups operations. Pure data.

A new address belongs to the first resource that has a pattern for it; `test_documented.py` fails for one that has none.
"""

import re
from typing import NamedTuple

PREFIX = "/api/v1/"


class Resource(NamedTuple):
    """A tag of the OpenAPI document. `pattern` matches the beginning of a path behind PREFIX."""

    name: str
    description: str
    pattern: re.Pattern[str]


def _resource(name: str, pattern: str, description: str) -> Resource:
    return Resource(name, description, re.compile(pattern))


_JOB = r"jobs/\{job_id\}"
# In the order of the document.
RESOURCES = (
    _resource(
        "Jobs",
        rf"jobs$|jobs:|{_JOB}$|{_JOB}:(?!profile)|{_JOB}/timeline$|presets|spec/",
        "Submit, plan, list, cancel, pause, resume, fork and retry training and preparation jobs. A job runs as one "
        "attempt after the other; each attempt is one submission to a cluster.",
    ),
    _resource("Events", rf"events|{_JOB}/events", "What happened to jobs: pages, long polls and event streams."),
    _resource(
        "Metrics and logs",
        rf"metrics|{_JOB}/(metrics|logs|attempts|system|preflights)",
        "Series that training and its machines reported, log lines of its processes, and what a cluster recorded of an "
        "attempt.",
    ),
    _resource("Profiles", rf"{_JOB}(:profile|/profiles)", "Traces of a running job's steps."),
    _resource(
        "Checkpoints", rf"checkpoints(?!.*/deletion)|{_JOB}/checkpoints", "States that a job saved to resume from."
    ),
    _resource("Replays", rf"{_JOB}/replays", "Segments of finished jobs, computed again and compared."),
    _resource(
        "Artifacts",
        rf"artifacts(?!.*/deletion)|{_JOB}/artifacts",
        "Models, logs and profiles that a job stored. Content is encrypted in the object store.",
    ),
    _resource(
        "Models",
        r"models(?!.*/deletion)",
        "The model registry: named models of a team, their numbered versions, and aliases such as `production`.",
    ),
    _resource("Lineage", r"lineage", "What stored data and models were made of, and what was made from them."),
    _resource("Data sets", r"datasets(?!.*/deletion)", "Text to train on: uploads of a team, and how it is tokenised."),
    _resource(
        "Deletions",
        r"deletions|.*/deletion$",
        "What a deletion would remove, deletions with their undo window, and certificates of erasure.",
    ),
    _resource("Projects", r"projects", "Groups of a team's jobs."),
    _resource("Queue", r"queue", "Jobs that wait for slots, why they wait, and how good the start estimates were."),
    _resource("Quotas", r"quotas", "The quota tree, its limits and use, and the settings of admission."),
    _resource("Budgets", r"budgets", "What a part of the organisation may spend in each calendar period."),
    _resource(
        "Costs",
        rf"costs|usage-report|goodput$|{_JOB}/(cost|goodput|efficiency)$",
        "Usage, cost and carbon of jobs, summed.",
    ),
    _resource("Prices", r"prices|series", "Prices of pools, and series of prices and of carbon intensity over time."),
    _resource("Clusters", r"clusters(?!.*/nodes)", "Where jobs run: clusters, their pools and health checks."),
    _resource("Nodes", r"clusters/.*/nodes", "Machines of a cluster: state, incidents, drain and quarantine."),
    _resource(
        "Teams",
        r"teams(/\{team_id\}(/data-policy)?)?$",
        "Teams own jobs, data sets and everything else that is stored.",
    ),
    _resource(
        "Members and invitations",
        r"teams/.*/(members|invitations)|invitations",
        "Who belongs to a team, in which role.",
    ),
    _resource("Service accounts", r"teams/.*/service-accounts|service-accounts", "Accounts of a team for programs."),
    _resource(
        "Secrets", r"teams/.*/secrets|secrets", "Values that jobs may use by name. No response contains a value."
    ),
    _resource(
        "Signing keys",
        r"teams/.*/signing-keys|signing-keys",
        "Keys that sign the models of a team. `POST /artifacts/{artifact_id}:sign` uses the active one.",
    ),
    _resource("Tokens", r"tokens", "Bearer tokens of the caller for the command line, pipelines and programs."),
    _resource("Session", r"sessions?(/|:|$)", "Signing in and out of the dashboard, and where a user is signed in."),
    _resource("Second factors", r"second-factors", "Authenticator app, passkeys and recovery codes of the caller."),
    _resource("Alerts", r"alert-rules|alerts", "Rules on the series and states of jobs, on budgets and on storage."),
    _resource("Notifications", r"notification", "Your inbox, and what you get by mail, and when."),
    _resource("Webhooks", r"webhooks|deliveries", "Addresses that a team's events are sent to, and their deliveries."),
    _resource("Simulations", r"simulations", "Replays of real or generated jobs against proposed quotas."),
    _resource("Audit", r"audit", "The append-only trail of changes, chained and authenticated."),
    _resource("Platform", r"admin/", "Background reconcilers, orphaned objects and recorded admission decisions."),
)
TAGS = [{"name": each.name, "description": each.description} for each in RESOURCES]


def resource_of(path: str) -> Resource | None:
    """Return the resource of a path of the API document, None for one that no pattern matches."""
    rest = path.removeprefix(PREFIX)
    return next((each for each in RESOURCES if each.pattern.match(rest)), None)
