"""Rules for injective functions: each element of an output is an expression of elements of the inputs."""
