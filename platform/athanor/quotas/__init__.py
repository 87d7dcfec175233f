"""How much each part of the organisation may use: a tree of quotas, and limits.

May import: jobs and below. What is used is never kept here: it is counted from the rows of live jobs.
"""
