"""The actions of `halo-tvm logs`, a file each; `run(config)` prints and returns the exit code."""
