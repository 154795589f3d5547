"""Rules for attention, on CPUs and GPUs; what they share lies beside them."""
