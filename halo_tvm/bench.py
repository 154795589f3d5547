"""`python -m halo_tvm.bench`: the same as `halo-tvm bench`."""

import sys

from halo_tvm.cli._main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
