"""Raw ids: 64-bit ids and strings in, rows of tables out."""
