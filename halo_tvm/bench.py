"""`python -m halo_tvm.bench`: the same as `halo-tvm bench`."""

import sys

from halo_tvm.cli import entry

if __name__ == "__main__":
    entry(["bench", *sys.argv[1:]])
