"""Imported by a builder under test: NVIDIA's tools are not found there."""

from halo_tvm.cuda import toolkit

toolkit.find_tool = lambda name: None
