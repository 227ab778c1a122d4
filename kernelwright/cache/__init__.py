"""What runs keep for the next ones: whole results, and the folder in which everything stands."""
