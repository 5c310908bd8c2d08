"""Seeded open-loop load through Locust, and comparisons of variants under it."""
