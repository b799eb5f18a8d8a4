"""The convolutions of the impala network in C++: `native/` is the library, `build` compiles it when the package is
installed, `library` loads it, `impala` puts it behind torch's autograd. docs/kernels.md explains the arithmetic.
"""
