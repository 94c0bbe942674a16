"""Unknown facts: the number of records, bounds and labels."""
