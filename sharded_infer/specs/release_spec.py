"""How much worse than the version before a release may be while it gets a share of the requests."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class ReleaseSpec:
    """Bounds of `repo promote`; None: no bound. One that is broken takes the version back.

    Attributes:
        max_score_shift: between the outputs' mean scores, in standard deviations of the scores of
            the version before; of each output.
        max_error_rate: share of the requests that fail, beyond the share of the version before.
        max_p99_ratio: of the request times' 99th percentile to that of the version before.
        max_unknown_ids: share of the ids that are unknown or outside their tables.
    """

    max_score_shift: Annotated[float, Field(gt=0, le=100)] | None = None
    max_error_rate: Share | None = None
    max_p99_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    max_unknown_ids: Share | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no bound."""
        return self == ReleaseSpec()
