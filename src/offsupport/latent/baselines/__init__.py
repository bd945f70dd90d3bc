"""What the extrapolator is compared with: the paper's own estimator and three others."""
