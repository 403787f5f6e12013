"""What `bench engine` measures beside DLRM-v2 on the host, and `bench sequences`."""
