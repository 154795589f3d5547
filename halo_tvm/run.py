"""`python -m halo_tvm.run`: the same as `halo-tvm run`."""

import sys

from halo_tvm.cli import entry

if __name__ == "__main__":
    entry(["run", *sys.argv[1:]])
