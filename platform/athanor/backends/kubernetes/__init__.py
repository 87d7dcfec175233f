"""Kubernetes: one Indexed Job for each attempt, in a namespace of its team.

What belongs to an attempt (the Job, a Secret with its token, and for several nodes a headless Service and a
NetworkPolicy) has the attempt's name and goes with the Job, which the cluster removes some time after its end.
An attempt is one try, and Athanor decides about the next one; only runs that may lose nodes get pods replaced.
"""
