"""Evidence for auditors: anchors of the audit trail, deletion and erasure of teams, certificates of erasure.

May import: dispatch, scheduling, webhooks and below. Known to reconcilers, api and workers.
"""
