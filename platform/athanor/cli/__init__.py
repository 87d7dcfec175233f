"""The `athanor` command. Speaks only HTTP to api/v1; opens sealed models itself.

May import: the base install (httpx, pydantic, PyYAML, rich, tink, typer) and `trainer.contract`. Must never
import Django, torch, or anything of the server: it is what a pipeline installs.
"""
