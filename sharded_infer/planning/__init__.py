"""The planner: where every part of every table goes, and why."""
