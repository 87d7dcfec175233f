"""The embedded stack: PostgreSQL, Valkey, an S3 store, web, Celery worker and beat on loopback, in one folder.

May import: the standard library, psutil, and (each in its own process only) swift and eventlet. Must never
import Django, `athanor` or `trainer`: it starts them as programs, as any operator would.
"""
