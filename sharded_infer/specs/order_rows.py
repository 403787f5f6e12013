"""The order of a version's rows."""

from enum import StrEnum


class OrderRows(StrEnum):
    """The order of a version's rows in its tables."""

    AS_TRAINED = "as_trained"
    FREQUENCY = "frequency"
