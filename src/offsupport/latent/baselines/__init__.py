"""What the extrapolator is compared with: the paper's own estimator, one that works in its spirit, and three others."""
