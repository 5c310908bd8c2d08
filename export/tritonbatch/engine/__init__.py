"""TensorRT: a verified ONNX file to an engine, to a script that builds one, or to ONNX Runtime's accelerator."""
