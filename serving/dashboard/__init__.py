"""The live page: what a server does now and did in the last minutes."""
