"""config.pbtxt as protobuf, its variants, and where files lie in a model repository."""
