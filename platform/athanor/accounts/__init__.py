"""Who may do what: users, teams, memberships with roles, API tokens.

May import: core. Must never import jobs or anything above. A token carries its user's role in one team, never more.
"""
