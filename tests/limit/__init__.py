"""Without noise the ordinary fit: every public way to a regression beside statsmodels, survey and lme4."""
