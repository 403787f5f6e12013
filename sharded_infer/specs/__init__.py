"""A model's description: tables, features, tower, gates and statistics."""
