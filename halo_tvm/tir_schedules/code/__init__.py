"""What kernels are written with: loops in vectors, threads of a GPU, prefetches, vector mathematics."""
