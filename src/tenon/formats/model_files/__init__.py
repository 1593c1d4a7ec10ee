"""Model files: opening them, finding the files that belong to them, fetching them over http(s)."""
