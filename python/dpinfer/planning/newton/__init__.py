"""Widths of private Newton runs, before they are made."""
