"""Where several processes of one model run."""
