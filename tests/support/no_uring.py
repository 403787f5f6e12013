"""A program that runs the command with io_uring refused by the kernel, as in many containers."""

# seccomp(2): a filter that ends io_uring_setup, 425 on all architectures, with EPERM.
PROGRAM = """
import ctypes, struct, sys
def step(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)
steps = b"".join([
    step(0x20, 0, 0, 0),           # the call's number
    step(0x15, 0, 1, 425),
    step(0x06, 0, 0, 0x00050001),  # EPERM
    step(0x06, 0, 0, 0x7FFF0000),  # allowed
])
kept = ctypes.create_string_buffer(steps)
class Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("steps", ctypes.c_void_p))
given = Filter(4, ctypes.addressof(kept))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0           # no new privileges
assert libc.prctl(22, 2, ctypes.byref(given)) == 0  # a filter of calls
import serving.cli
serving.cli.main()
"""
