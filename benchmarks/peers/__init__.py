"""Our server beside Triton."""
