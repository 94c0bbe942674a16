"""What a private Newton run has published."""
