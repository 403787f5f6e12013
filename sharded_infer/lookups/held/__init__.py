"""Rows that a process holds: mapped, copied, or in tiers."""
