"""A candidate's process, and the judge's side of it: started, asked, watched, and what the two exchange."""
