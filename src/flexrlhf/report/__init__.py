"""One offline page and a short table from a run folder."""
