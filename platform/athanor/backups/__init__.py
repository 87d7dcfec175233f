"""Backups of an installation, their verification and restore.

A backup is one snapshot of the database and the objects that it refers to; its keys are in it as they are in the
database, wrapped. May import: artifacts and below. Known to management commands only.
"""
