"""Events told to addresses that teams name: which are due, signed, sent, tried again, and given up.

May import: artifacts (keys), jobs (the feed), accounts, core. Nothing below knows of it. Never sends inside a
transaction, never to an address that was not checked; every event of a webhook's types is told at least once, or its
delivery says why not.
"""
