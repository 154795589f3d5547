"""`python -m halo_tvm.validate`: the same as `halo-tvm validate`."""

import sys

from halo_tvm.cli._main import main

if __name__ == "__main__":
    sys.exit(main(["validate", *sys.argv[1:]]))
