"""Measuring on devices of a TVM RPC tracker: the lab, what a device says of itself, and serving this machine."""
