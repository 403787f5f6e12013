"""The order of a version's rows."""

from enum import StrEnum


class OrderRows(StrEnum):
    """In which order a version has the rows of tables with id maps."""

    AS_TRAINED = "as_trained"
    FREQUENCY = "frequency"
