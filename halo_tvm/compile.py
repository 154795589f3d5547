"""`python -m halo_tvm.compile`: the same as `halo-tvm compile`."""

import sys

from halo_tvm.cli import entry

if __name__ == "__main__":
    entry(["compile", *sys.argv[1:]])
