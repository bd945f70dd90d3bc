"""The estimator for users, in its parts: what is decided, the dense half, the sparse half, finite C."""

from offsupport.core.moved import moved

__getattr__ = moved(__name__, {"Extrapolator": "offsupport.latent"})
