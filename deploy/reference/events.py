"""docs/reference/events.md, from the tables of event types."""

from athanor.jobs.event_types import PLATFORM_EVENTS
from deploy.reference.markdown import code, page, table
from trainer.contract.events import AGENT_EVENTS, EventType

INTRODUCTION = """
Everything that happens to a job is an event. How to read events as pages, streams and webhooks is in
[events](../how-to/follow-events.md). An event has these fields:
"""
FIELDS = (
    ("job_id", "Id of the job."),
    ("seq", "Number within the job, from 1 without gaps."),
    ("team_seq", "Number within the team, in the order of commits. null for a moment after the commit."),
    ("type", "One of the types below."),
    ("time", "When it happened, in UTC."),
    ("actor", "Who caused it: a user name, an attempt's id (`att_...`), or a part of the platform."),
    ("message", "Text for people. May be empty."),
    ("data", "The fields that are listed below for each type."),
    ("request_id", "Id of the API request that caused it, if there was one."),
)
PLATFORM = """
## Events of the platform

Only the platform writes these.
"""
AGENTS = """
## Events of attempts

The trainer on the compute nodes sends these with the token of its attempt, and the `actor` is the attempt's id. Any
other type that it sends is dropped and recorded as `agent.events_refused`.
"""
OTHERS = """
## Messages that are no events

`job.progress` is part of streams only and is not stored: it has `job_id`, `progress` (the newest numbers of a running
job) and `log_lines`. `webhook.test` is sent by `POST /api/v1/webhooks/{id}:test` to one webhook.
"""


def events_page() -> str:
    """Return the page."""
    fields = table(("field", "meaning"), ((code(name), text) for name, text in FIELDS))
    ours = table(
        ("type", "actor", "meaning", "fields of `data`"),
        ((code(name), event.actors, event.meaning, _fields(event)) for name, event in PLATFORM_EVENTS.items()),
    )
    theirs = table(
        ("type", "meaning", "fields of `data`"),
        ((code(name), event.meaning, _fields(event)) for name, event in AGENT_EVENTS.items()),
    )
    return page("Event types", INTRODUCTION, fields, PLATFORM, ours, AGENTS, theirs, OTHERS)


def _fields(event: EventType) -> str:
    return "<br>".join(f"{code(name)}: {text}" for name, text in event.fields.items()) or "none"
