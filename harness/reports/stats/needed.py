"""How many units would distinguish two methods, under the rule that is applied."""

from __future__ import annotations

import math

from scipy import special

from harness.reports.stats.measure import SHARES, Measure
from harness.reports.stats.paired import ENOUGH, SURE, Difference

POWER = 0.8
MOST_UNITS = 10**5  # more than these separate nothing
OF_EXP, OF_SHARE = 0.005, 0.01  # of perplexity (0.5 %), and of a share (1 percentage point)


def negligible(value: float, how: Measure) -> bool:
    """Return whether a difference is too small to be worth measuring.

    Of a score that is neither relative nor a share no difference is: 0.01 nats may be all of one.
    """
    if how.relative:
        return abs(value) < OF_EXP
    return how.metric in SHARES and abs(value) < OF_SHARE


def needed(found: Difference, others: int) -> int | None:
    """Return at how many units both tests tell the two in at least four of five sweeps.

    Were the units like those seen, and the level Holm's first, of ``others`` comparisons that are
    not told apart yet. Both tests fail less often than one and the other together: the number is
    rather too large than too small. None where no difference is seen, or none that MOST_UNITS
    would tell.
    """
    if found.p is None or found.lower == found.higher:
        return None
    if (found.lower > found.higher) != (found.value < 0):
        return None  # the mean and the signs disagree: more units would not make them agree
    level = SURE / max(1, others)

    def power(units: int) -> float:
        return _signs(found, units, level) + _mean(found, units, level) - 1

    few = found.n if found.mean is None else max(found.n, ENOUGH - 1)
    many = few + 1
    while power(many) < POWER:
        few, many = many, 2 * many
        if many > MOST_UNITS:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if power(middle) >= POWER else (middle, many)
    return many


def _signs(found: Difference, units: int, level: float) -> float:
    """Return the power of the exact sign test at so many units, a share of them without ties."""
    untied = (found.lower + found.higher) / found.n
    share = max(found.lower, found.higher) / (found.lower + found.higher)
    # The number of units that are not tied is uncertain too: one in ten samples has fewer.
    count = _quantile(0.1, units, untied) if untied < 1 else units
    most = _quantile(level / 2, count, 0.5)
    while most >= 0 and 2 * float(special.bdtr(most, count, 0.5)) >= level:
        most -= 1
    if most < 0:
        return 0.0
    return float(special.bdtr(most, count, 1 - share))


def _quantile(p: float, n: int, share: float) -> int:
    """Return the least number that n trials do not have more successes than, with chance p."""
    least = max(0, math.ceil(special.bdtrik(p, n, share)) - 1) if n else 0
    while special.bdtr(least, n, share) < p:
        least += 1
    return least


def _mean(found: Difference, units: int, level: float) -> float:
    """Return the power of the test of the mean, which two shares have not beside their signs."""
    mean = found.mean
    if mean is None or not mean.error:
        return 1.0
    degrees = (mean.degrees + 1) * units / found.n - 1
    # The bootstrap's skew wears off with the root of the number.
    toward = 1 + ((mean.below if mean.value > 0 else mean.above) - 1) * math.sqrt(found.n / units)
    shift = abs(mean.value) / mean.error * math.sqrt(units / found.n)
    shift *= 1 - (1 - found.kept) * found.n / units  # one unit more has less weight among many
    least = toward * float(special.stdtrit(degrees, 1 - level / 2))
    # As scipy.stats.nct, whose import takes a second. Where its series does not converge, the two
    # are dozens of standard errors apart.
    below = float(special.nctdtr(degrees, shift, least))
    return float(least < shift) if math.isnan(below) else 1 - below
