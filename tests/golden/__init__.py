"""Every private mechanism on small simulated records with a fixed key, and the bits that it released."""
