"""What confines a candidate's process: what it may read, use and call, who ends it, and what is in force."""
