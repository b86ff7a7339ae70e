"""Native kernels: small C files, compiled once by the system's compiler and loaded with ctypes.

Each has its torch reference in `ced_kernels.kernel_set`. Nothing is compiled or loaded on import.
"""
