"""Scales: one unknown per parameter, both the Hessian's diagonal and the precision of q; noise variances."""
