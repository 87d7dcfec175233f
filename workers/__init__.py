"""Celery processes: what runs, how often, on which queue. No business rules: a task claims, calls and applies.

May import: athanor below `api`. Nothing imports workers; messages reach the tasks by name (athanor.core.task_triggers).
"""
