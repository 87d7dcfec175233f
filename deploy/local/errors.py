"""Errors that a person can fix: one line with the subject, its value and the remedy."""


class StackError(Exception):
    """The stack cannot do what was asked. `log` holds the last lines of the service that is to blame."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log
