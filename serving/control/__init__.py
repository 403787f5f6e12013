"""The control plane: every client request except predict calls, for every transport."""
