"""`python -m halo_tvm.run`: the same as `halo-tvm run`."""

import sys

from halo_tvm.cli._main import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
