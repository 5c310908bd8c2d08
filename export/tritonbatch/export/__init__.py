"""Torch to ONNX, checked against the module before it is accepted, and written so that interruption does no harm."""
