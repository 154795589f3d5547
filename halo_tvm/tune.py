"""`python -m halo_tvm.tune`: the same as `halo-tvm tune`."""

import sys

from halo_tvm.cli._main import main

if __name__ == "__main__":
    sys.exit(main(["tune", *sys.argv[1:]]))
