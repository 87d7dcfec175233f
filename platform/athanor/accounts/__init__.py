"""Who may do what: users, teams, roles and permissions, members, invitations, API tokens, the audit trail.

May import: core. Must never import jobs or anything above. A token carries its user's role in one team, never more.
"""
