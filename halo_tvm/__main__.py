"""`python -m halo_tvm <verb>`: the same as `halo-tvm <verb>`."""

from halo_tvm.cli import entry

if __name__ == "__main__":
    entry()
