"""Grids of cells: what to run, where the results live, who runs them."""
