"""`python -m halo_tvm.validate`: the same as `halo-tvm validate`."""

import sys

from halo_tvm.cli import entry

if __name__ == "__main__":
    entry(["validate", *sys.argv[1:]])
