"""What came out, with types: rows, claims, intervals, and which images were right."""
