"""The exception that ends an attempt with a given end class."""

from trainer.contract.run import EndClass


class TrainerError(Exception):
    """Ends the attempt with `end_class`. The message names what is wrong and what to do about it."""

    def __init__(self, end_class: EndClass, message: str) -> None:
        super().__init__(message)
        self.end_class = end_class
