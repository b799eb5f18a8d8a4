"""The convolutions of the impala and nature networks in C++: `native/` is the library, `build` compiles it when the
package is installed, `library` loads it, `features` puts it behind torch's autograd. docs/kernels.md explains it.
"""
