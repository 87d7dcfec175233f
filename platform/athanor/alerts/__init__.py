"""Alerts for users: rules of teams, the alerts that they raise, and notifications in the inbox and by mail.

May import: webhooks (the schedule of retries), artifacts, telemetry, budgets, quotas, jobs, accounts, core. Webhooks
get alerts as events of the team's feed. Never sends mail inside a transaction; a rule has at most one open alert per
subject, and each alert notifies a user once when it fires and once when it is resolved.
"""
