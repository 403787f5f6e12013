"""Lowers a tower's products to low precision, packs and fuses them."""
