"""halo_tvm: a compiler and auto-tuner for deep-learning models on Apache TVM."""
