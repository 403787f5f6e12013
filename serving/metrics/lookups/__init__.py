"""What is counted of a version's lookups, and of the ids that they are asked for."""
