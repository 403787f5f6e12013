"""Pages and figures about quantizations and plans."""
