"""What is kept of a version that is being promoted."""
