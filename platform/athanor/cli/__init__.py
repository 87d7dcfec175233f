"""The `athanor` command: an HTTP client of api/v1 that decrypts models locally.

May import: the base install (httpx, pydantic, PyYAML, rich, tink, typer) and `trainer.contract`. Must never
import Django, torch, or anything of the server: it is what a pipeline installs.
"""
