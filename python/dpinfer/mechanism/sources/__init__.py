"""Where rows come from: files, queries, shards, sparse matrices, a GPU."""
