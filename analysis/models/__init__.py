"""Models that several programs measure."""
