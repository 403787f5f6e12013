"""A plan over several hosts beside one process."""
