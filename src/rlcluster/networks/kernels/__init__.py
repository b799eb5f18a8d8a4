"""The convolutions of the impala and nature networks in C++: `native/` is the library, `build` compiles it when the
package is installed, `library` loads it, `features` is the autograd function. docs/kernels.md explains it.
"""
