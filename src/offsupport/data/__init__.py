"""Data sets in their official layouts, corruptions, streams."""
