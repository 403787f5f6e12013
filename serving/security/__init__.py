"""Access control: who may call what, and how often."""
