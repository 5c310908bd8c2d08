"""Measurements made readable: the verdict, the terminal table and the page. Measures and decides nothing else."""
