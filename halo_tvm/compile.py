"""`python -m halo_tvm.compile`: the same as `halo-tvm compile`."""

import sys

from halo_tvm.cli._main import main

if __name__ == "__main__":
    sys.exit(main(["compile", *sys.argv[1:]]))
