"""Instances of models from statements that are written in SQL, for what each request needs."""

from typing import Any, TypeVar

from django.db import connection
from django.db.models import Model

Row = TypeVar("Row", bound=Model)


def columns_of(model: type[Model], alias: str) -> str:
    """Return all columns of a model's table, for a SELECT.

    Never `*`: a statement that a connection has prepared fails when a migration adds a column.
    """
    return ", ".join(f'{alias}."{field.column}"' for field in model._meta.concrete_fields)


def loaded(model: type[Row], **columns: Any) -> Row:
    """Build an instance from some of its columns; the others are loaded when they are used, as with `only`."""
    # `from_db` takes columns in the order of the model's fields.
    names = [field.attname for field in model._meta.concrete_fields if field.attname in columns]
    return model.from_db(connection.alias, names, [columns[name] for name in names])
