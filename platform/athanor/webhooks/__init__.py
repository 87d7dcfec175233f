"""Webhooks: events delivered to addresses of teams, signed, retried and given up.

May import: artifacts (keys), jobs (the feed), accounts, core. Nothing below knows of it. Never sends inside a
transaction, never to an address that was not checked; every event of a webhook's types is delivered at least once, or
its delivery says why not.
"""
