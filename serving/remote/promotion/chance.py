"""Whether a count is more than chance explains."""

from math import exp, lgamma, log, log1p, sqrt

# One comparison in a thousand calls a sound version worse, at most.
_CHANCE = 0.001
# Of normal values, so many standard deviations above the mean are as rare as that.
DEVIATIONS = 3.0
# Two-sided, 95%.
_USUAL = 1.96


def is_beyond_chance(count: float, total: float, share: float) -> bool:
    """Whether `count` of `total` is more than chance makes of `share`: exact binomial test.

    True if a binomial variable of `total` trials, each true with probability `share`, is `count`
    or more with a probability below 1/1000.
    """
    k, n = int(count), int(total)
    if k <= n * share:
        return False
    if share <= 0.0:
        return True
    log_choices = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    term = exp(log_choices + k * log(share) + (n - k) * log1p(-share))
    odds, tail = share / (1 - share), 0.0
    # Above the mean each term is smaller than the one before.
    while tail < _CHANCE and k <= n and term > tail * 1e-9:
        tail += term
        term *= (n - k) / (k + 1) * odds
        k += 1
    return tail < _CHANCE


def highest_share(count: float, total: float) -> float:
    """The upper end of the 95% interval of a share (Wilson 1927); 1 without trials."""
    if not total:
        return 1.0
    share, squared = count / total, _USUAL**2
    middle = share + squared / (2 * total)
    half = _USUAL * sqrt(share * (1 - share) / total + squared / (4 * total**2))
    return min(1.0, (middle + half) / (1 + squared / total))
