"""Load generators that time each call."""
