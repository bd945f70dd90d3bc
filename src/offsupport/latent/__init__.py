"""Extrapolation with latent variables: processes z = [c, s] -> x, and estimators that find c off the support."""
