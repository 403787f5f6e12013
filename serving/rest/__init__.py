"""The Open Inference Protocol over HTTP, and what every HTTP connection is held to."""
