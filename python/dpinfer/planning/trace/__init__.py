"""Settings and widths of gradient traces, before they are made."""
