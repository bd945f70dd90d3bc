"""Networks and layers."""
