"""What a run is made of, and how often: the work itself, its container, its retries."""
