"""Users, teams, roles and permissions, members, invitations, API tokens, and the audit trail.

May import: core. Must never import jobs or anything above. A token has its user's role in one team, never more.
"""
