"""What Triton would refuse, ignore or surprise with in a model repository, found without a server.

Every rule is a pure function over one configuration and the graph it is about, in a file by topic; `linter` runs them,
`repair` applies those repairs that cannot change what a configuration means, `compare` says what two differ in.
"""
