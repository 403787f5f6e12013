"""Statistical tests of counts against chance."""

from math import exp, lgamma, log, log1p, sqrt

# At most one comparison in a thousand calls a sound version worse.
_CHANCE = 0.001
# Standard deviations above the mean with that probability, for normal values.
DEVIATIONS = 3.0
# Two-sided, 95%.
_USUAL = 1.96


def is_beyond_chance(count: float, total: float, share: float) -> bool:
    """Exact binomial test: True if `count` of `total` exceeds chance at `share`.

    That is, a binomial variable of `total` trials with probability `share` is `count` or more with
    a probability below 1/1000.
    """
    k, n = int(count), int(total)
    if k <= n * share:
        return False
    if share <= 0.0:
        return True
    log_choices = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    term = exp(log_choices + k * log(share) + (n - k) * log1p(-share))
    odds, tail = share / (1 - share), 0.0
    # Above the mean each term is smaller than its predecessor.
    while tail < _CHANCE and k <= n and term > tail * 1e-9:
        tail += term
        term *= (n - k) / (k + 1) * odds
        k += 1
    return tail < _CHANCE


def highest_share(count: float, total: float) -> float:
    """Upper end of the 95% interval of a share (Wilson 1927); 1 without trials."""
    if not total:
        return 1.0
    share, squared = count / total, _USUAL**2
    middle = share + squared / (2 * total)
    half = _USUAL * sqrt(share * (1 - share) / total + squared / (4 * total**2))
    return min(1.0, (middle + half) / (1 + squared / total))
