"""fp32 rows to stored rows."""
