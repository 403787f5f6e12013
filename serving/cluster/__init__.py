"""Where several processes of one model run: on Kubernetes, or on Ray."""
