"""The estimator for users, in its parts: what is decided, the dense half, the sparse half, finite C."""
