"""The protocol's extension for tensors in shared memory."""
