"""What every room may lean on: errors, registry, configurations, seeds, files."""
