"""References of compiled code, in torch and NumPy."""
