"""What an operator watches and mends: the sweepers and how far they are behind, and what is orphaned; and what quotas
are as a whole, over jobs, stored bytes and admission.

May import: dispatch, scheduling and below. Known to api and workers. Invariant: nothing here decides anything about a
job; its actions are those that a sweeper would take by itself, a little later.
"""
