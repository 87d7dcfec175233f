"""Quotas: the tree of slots and limits of the organisation, its groups and teams.

May import: jobs and below. Usage is never stored here: it is counted from the rows of live jobs.
"""
