"""Data-generating processes z = [c, s] -> x, their generators, and runs drawn from them."""
