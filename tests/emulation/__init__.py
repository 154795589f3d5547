"""Runs what a scheduled GPU function is lowered to on the CPU, thread by thread, and finds what would go wrong.

`emulate(func, target, arguments)` takes the program from TVM's own lowering, as it stands before code is
generated, so barriers, shared memory, shuffles and matrix instructions are those that a GPU would execute. All
threads take each statement together, in NumPy; a `KernelFault` says where a GPU might take another order:
    two threads meet at one address without a barrier between them; a barrier that only some threads reach;
    a shuffle that a lane of its mask does not reach; an address outside its buffer, or one that a vector, a copy
    or a matrix load cannot begin at; a launch of no blocks, or of more than the GPU's level takes
Memory that nobody wrote holds NaN (floats) or -1, so that using it shows. For small shapes: every statement
costs microseconds per thousand threads.
"""

from ._fault import KernelFault
from ._run import Emulation, emulate

__all__ = ["Emulation", "KernelFault", "emulate"]
