"""The planner's search."""
