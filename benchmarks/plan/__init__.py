"""The planner beside TorchRec's."""
