"""The order of a version's rows."""

from enum import StrEnum


class OrderRows(StrEnum):
    """In which order a version has the rows of its tables."""

    AS_TRAINED = "as_trained"
    FREQUENCY = "frequency"
