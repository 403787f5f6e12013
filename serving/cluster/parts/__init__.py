"""Parts of a publish, as tasks of Ray."""
