"""Bounds on a release relative to the previous version while it gets a share of the requests."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from sharded_infer.specs.spec_errors import spec_errors

Share = Annotated[float, Field(ge=0, le=1)]


@spec_errors
@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class ReleaseSpec:
    """Bounds of `repo promote`; None: no bound. A broken bound rolls the version back.

    Attributes:
        max_score_shift: between each output's mean scores, in standard deviations of the previous
            version's scores.
        max_error_rate: share of failing requests, beyond the previous version's share.
        max_p99_ratio: of the request times' 99th percentile to that of the previous version.
        max_unknown_ids: share of the ids that are unknown or outside their tables.
    """

    max_score_shift: Annotated[float, Field(gt=0, le=100)] | None = None
    max_error_rate: Share | None = None
    max_p99_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    max_unknown_ids: Share | None = None

    @property
    def is_empty(self) -> bool:
        """True if there is no bound."""
        return self == ReleaseSpec()
