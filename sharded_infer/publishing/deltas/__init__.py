"""Publishing of changed rows, and their compaction into whole versions."""
