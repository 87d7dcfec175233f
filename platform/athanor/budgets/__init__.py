"""Budgets of parts of the organisation, their ledger, prices, and the metering of usage and cost.

May import: quotas and below. `tariff`, `periods` and `cost_forecast` are pure.
"""
