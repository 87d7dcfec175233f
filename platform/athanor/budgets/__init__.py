"""What parts of the organisation may spend, what was spent, and what it cost: budgets, their ledger, prices, the meter.

May import: quotas and below. `tariff`, `periods` and `forecast` are pure.
"""
