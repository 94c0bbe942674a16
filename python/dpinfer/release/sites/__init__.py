"""What a run of DP-SEP has published."""
