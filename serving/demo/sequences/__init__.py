"""The demo of sequences: from ratings to models that read a user's history."""
