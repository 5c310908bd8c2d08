"""From records and server statistics to measurements."""
