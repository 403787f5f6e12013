"""Towers split into what a request's pairs share and what each pair computes."""
