"""`python -m halo_tvm <verb>`: the same as `halo-tvm <verb>`."""

import sys

from halo_tvm.cli._main import main

if __name__ == "__main__":
    sys.exit(main())
