"""The conformance suite's case serves these tests, too."""

from tests.backends.cases.kubernetes import kubernetes

__all__ = ["kubernetes"]
