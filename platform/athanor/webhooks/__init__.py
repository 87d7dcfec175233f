"""Webhooks: events delivered to addresses of teams, with signatures and retries.

May import: artifacts (keys), jobs (the feed), accounts, core. No lower layer imports it. Never sends inside a
transaction or to an unchecked address; every event of a webhook's types is delivered at least once, or its delivery
records why not.
"""
