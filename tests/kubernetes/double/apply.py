"""Server-side apply and merge patches.

Fields are paths of names; a list is one field, as a whole (the real server knows the keys of some lists).
"""

import copy
from typing import Any

from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.selectors import Object

Path = tuple[str, ...]
SKIPPED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}


def apply(current: Object | None, wanted: Object, manager: str, force: bool, owned: dict[str, set[Path]]) -> Object:
    """The object as it is after `manager` applied `wanted`; `owned` are each manager's fields, brought up to date.
    Raises 409 for a field that another manager set to something else."""
    fields = leaves(wanted)
    result = copy.deepcopy(current) if current is not None else {}
    for other, theirs in owned.items():
        if other == manager:
            continue
        disputed = [path for path in fields if path in theirs and _read(result, path) != _read(wanted, path)]
        if disputed and not force:
            names = ", ".join("." + ".".join(path) for path in sorted(disputed))
            raise ApiError(409, f'Apply failed with {len(disputed)} conflict: conflict with "{other}": {names}')
        theirs.difference_update(disputed)
    for path in owned.get(manager, set()) - fields:
        if not any(path in theirs for other, theirs in owned.items() if other != manager):
            _drop(result, path)
    for path in sorted(fields):
        if not (_read(wanted, path) == {} and isinstance(_read(result, path), dict)):  # an empty map owns nothing in it
            _write(result, path, _read(wanted, path))
    for path in SKIPPED:
        if (value := _read(wanted, path)) is not None:
            _write(result, path, value)
    owned[manager] = fields
    return result


def leaves(item: Any, path: Path = ()) -> set[Path]:
    if isinstance(item, dict) and item:
        found = set().union(*(leaves(value, (*path, name)) for name, value in item.items()))
        return found - SKIPPED
    return {path}


def merge(current: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(current) if isinstance(current, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def _read(item: Any, path: Path) -> Any:
    for name in path:
        if not isinstance(item, dict):
            return None
        item = item.get(name)
    return item


def _write(item: Object, path: Path, value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(item.get(name), dict):
            item[name] = {}
        item = item[name]
    item[path[-1]] = copy.deepcopy(value)


def _drop(item: Object, path: Path) -> None:
    parent = _read(item, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
