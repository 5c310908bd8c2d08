"""The command line: one verb per stage, each a thin shell over that stage."""
