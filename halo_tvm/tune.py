"""`python -m halo_tvm.tune`: the same as `halo-tvm tune`."""

import sys

from halo_tvm.cli import entry

if __name__ == "__main__":
    entry(["tune", *sys.argv[1:]])
