"""Which kind of shift explains targets better: a few columns that moved, or all of them.

Both hypotheses start from the mixture of the source. Sparse: some set of columns lies anywhere (the flat density that
weighs sets of distrusted columns), the others are as on the source. Dense: every column is displaced by an independent
normal amount, of a scale between a quarter and 64 standard deviations. Either grants that half of the targets did not
move at all, so targets that look like the source speak for neither. Labels are not used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from offsupport.latent.density import Mixture
from offsupport.latent.masks import Weighed

SCALES = tuple(2.0**power for power in range(-2, 7))
DECISIVE = math.log(3)  # log odds that decide


def log_odds(mixture: Mixture, weighed: Weighed, x: Tensor, log_prior: float) -> Tensor:
    """Return the log odds of a sparse against a dense shift for every sample, (R, m).

    Args:
        mixture: Density of the source.
        weighed: The sets of distrusted dimensions of the samples.
        x: (R, m, d) samples.
        log_prior: Log density of where a distrusted dimension lies.
    """
    unmoved = mixture.log_density(x, torch.zeros(1, x.shape[-1], dtype=torch.bool))[..., 0]
    sparse = sparse_evidence(weighed, log_prior)
    dense = torch.stack([mixture.widened(x, scale**2) for scale in SCALES]).logsumexp(0) - math.log(len(SCALES))
    return torch.logaddexp(sparse, unmoved) - torch.logaddexp(dense, unmoved)


def sparse_evidence(weighed: Weighed, log_prior: float) -> Tensor:
    """Return the log evidence (R, m) of moved columns: sizes of sets are equally likely, then sets."""
    size, d, largest = weighed.masks.sum(-1), weighed.masks.shape[-1], weighed.largest
    sets = [math.inf, *(math.log(largest * math.comb(d, count)) for count in range(1, largest + 1))]
    prior = -torch.tensor(sets, dtype=torch.float64)[size]  # no set at all is the other half of the hypothesis
    return (weighed.kept_density + log_prior * size.double() + prior).logsumexp(-1)
