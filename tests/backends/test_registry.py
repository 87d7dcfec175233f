"""Every registered kind of backend goes through the conformance suite."""

from athanor.backends import registry
from tests.backends.conftest import CASES


def test_every_registered_kind_has_a_conformance_case() -> None:
    """A case also covers the kinds that its backend inherits from."""
    tested = [registry.backend_class(kind) for kind in CASES.values()]
    missing = {
        kind for kind in registry.BACKENDS if not any(issubclass(each, registry.backend_class(kind)) for each in tested)
    }
    assert missing == set(), "add a Case in tests/backends/cases and its fixture to CASES in tests/backends/conftest.py"
