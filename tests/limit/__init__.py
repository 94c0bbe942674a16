"""Without noise the ordinary fit: public ways to a regression beside statsmodels."""
