"""Prometheus metrics of the platform: its state, read from the database, and what its processes count.

May import: everything below `api`. Must never: write, or name what a scrape does not need (no prompts, specs, secrets).
"""
