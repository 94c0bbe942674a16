"""Posteriors of any shape: the likelihood of a released mean score is simulated by the model itself."""
