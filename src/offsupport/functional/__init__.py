"""Pure tensor mathematics, without state."""
