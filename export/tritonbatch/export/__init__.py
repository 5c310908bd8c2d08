"""Torch to ONNX, checked against the module before it is accepted, and written so that an interruption harms nothing."""
