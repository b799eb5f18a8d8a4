"""The kernels' shared library: loads it, chooses the instruction set, and calls it with tensors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from cffi import FFI
from torch import Tensor

from rlcluster.networks.kernels.build import LIBRARY
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.phases import clock

INTERFACE_VERSION = 3
INSTRUCTION_SETS = ("portable", "avx2", "avx512")  # numbered as in instruction_sets.hpp, the best last

C_INTERFACE = """
typedef struct rl_trunk rl_trunk;
int rl_interface_version();
int rl_is_supported(int instruction_set);
rl_trunk *rl_trunk_create(int kind, int instruction_set, int height, int width);
void rl_trunk_destroy(rl_trunk *trunk);
int64_t rl_trunk_num_features(const rl_trunk *trunk);
int64_t rl_trunk_saved_bytes(const rl_trunk *trunk);
int rl_trunk_forward(rl_trunk *trunk, const float *const *weights, const float *const *biases, const uint8_t *images,
                     int64_t num_images, float *features, char *saved, int num_threads);
int rl_trunk_backward(rl_trunk *trunk, const float *const *weights, const float *const *biases, const uint8_t *images,
                      int64_t num_images, const float *features, const float *features_gradient, char *saved,
                      float *const *weight_gradients, float *const *bias_gradients, int num_threads);
void rl_trunk_time_layers(rl_trunk *trunk, int is_timed);
void rl_trunk_layer_seconds(rl_trunk *trunk, double *seconds);
double rl_peak_flops(int instruction_set, int num_threads, double seconds);
double rl_peak_bandwidth(int instruction_set, int num_threads, int64_t bytes, double seconds);
typedef struct {
    int kind, index, num_images, height, width;
    const uint8_t *images;
    const float *input, *gradient, *residual;
    float *sum, *output;
    uint8_t *positions;
    float *weight_sums, *bias_sums;
} LayerTask;
int rl_trunk_layer(rl_trunk *trunk, const float *const *weights, const float *const *biases, const LayerTask *task,
                   float *weight_gradient, float *bias_gradient);
"""
REINSTALL = "install a C++ compiler (g++ or clang++) and compile them: make clean setup"

# The shapes of the weights [outputs, inputs, kernel, kernel], layer by layer; numbered as in library.cpp.
WEIGHT_SHAPES = {
    "impala": [(16, 3, 3, 3), *([(16, 16, 3, 3)] * 4), (32, 16, 3, 3), *([(32, 32, 3, 3)] * 9)],
    "nature": [(32, 3, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)],
}
COVERED = {"impala": "sides must be multiples of 32 up to 256", "nature": "images must have 64x64 pixels"}
# As in impala.hpp, nature.hpp and library.cpp.
IMAGES_PER_ITEM, ITEMS_PER_ACCUMULATOR, MIN_ACCUMULATORS, MAX_ACCUMULATORS = 4, 8, 8, 64
KEPT_BUFFERS = 2  # for later passes; only overlapping graphs would need more

LAYER_KINDS = ("forward", "backward", "pool", "unpool")  # numbered as in layer_task.hpp


def num_accumulators(num_images: int) -> int:
    """Of a backward pass, each filled by one thread: more threads have nothing to do."""
    num_items = -(-num_images // IMAGES_PER_ITEM)
    wanted = min(max(num_items // ITEMS_PER_ACCUMULATOR, MIN_ACCUMULATORS), MAX_ACCUMULATORS)
    return max(1, min(wanted, num_items))


class KernelsMissingError(Exception):
    """The kernels cannot be used here; the message says why."""


class Library:
    """One loaded library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ffi: Any = FFI()
        self.ffi.cdef(C_INTERFACE)
        if not path.exists():
            raise KernelsMissingError(f"they were not compiled; {REINSTALL}")
        self.functions: Any
        try:
            self.functions = self.ffi.dlopen(str(path))
            version = self.functions.rl_interface_version()
        except (OSError, AttributeError) as error:
            raise KernelsMissingError(f"{path} does not load: {error}; {REINSTALL}") from None
        if version != INTERFACE_VERSION:
            raise KernelsMissingError(f"{path} has another version; {REINSTALL}")

    def supported(self) -> list[str]:
        """The instruction sets of this processor, the best last."""
        return [name for k, name in enumerate(INSTRUCTION_SETS) if self.functions.rl_is_supported(k)]

    def peak_flops(self, num_threads: int, seconds: float, instruction_set: str | None = None) -> float:
        """Floating-point operations per second of these threads together, doing nothing but multiply-adds."""
        return self._peak(self.functions.rl_peak_flops(self._number(instruction_set), num_threads, seconds))

    def peak_bandwidth(self, num_threads: int, num_bytes: int, seconds: float) -> float:
        """Bytes per second that these threads together read, each again and again the same `num_bytes` of its own: few
        measure a cache, many the memory.
        """
        return self._peak(self.functions.rl_peak_bandwidth(self._number(None), num_threads, num_bytes, seconds))

    def _number(self, instruction_set: str | None) -> int:
        return INSTRUCTION_SETS.index(instruction_set or self.supported()[-1])

    @staticmethod
    def _peak(value: float) -> float:
        if value < 0:
            raise KernelsMissingError("the peaks got no memory or no threads, or the processor lacks the instructions")
        return value


@cache
def load(path: Path = LIBRARY) -> Library:
    """Raises KernelsMissingError if there is none."""
    return Library(path)


class Trunk:
    """The convolutions of a network for images of one size. A copy, or a pickle, is a new one: it owns only memory."""

    def __init__(
        self, network: str, height: int, width: int, instruction_set: str | None = None, path: Path = LIBRARY
    ) -> None:
        library = load(path)
        self.instruction_set = instruction_set or library.supported()[-1]
        self._arguments = network, height, width, instruction_set, path
        self._ffi, self._functions = library.ffi, library.functions
        kind, number = list(WEIGHT_SHAPES).index(network), INSTRUCTION_SETS.index(self.instruction_set)
        handle = self._functions.rl_trunk_create(kind, number, height, width)
        if handle == self._ffi.NULL:
            raise KernelsMissingError(
                f"{self.instruction_set} for the {network} network on images of {height}x{width} is not covered: "
                f"{COVERED[network]}, and the processor must support the instruction set"
            )
        self._handle = self._ffi.gc(handle, self._functions.rl_trunk_destroy)
        self.image_shape = height, width, 3
        self.weight_shapes = WEIGHT_SHAPES[network]
        self.num_features = int(self._functions.rl_trunk_num_features(handle))
        self.saved_bytes = int(self._functions.rl_trunk_saved_bytes(handle))  # per image, in training
        self.num_threads: int | None = None  # of the kernels; None: as many as torch has. Not copied
        self._free: list[Tensor] = []
        self._lock = threading.Lock()  # guards the list above: threads may share a policy

    def __reduce__(self) -> tuple[type[Trunk], tuple[Any, ...]]:
        return Trunk, self._arguments

    def _threads(self) -> int:
        return self.num_threads or torch.get_num_threads()

    def time_layers(self, is_timed: bool) -> None:
        """From now on the kernels count the time of each layer, from zero; or no longer."""
        self._functions.rl_trunk_time_layers(self._handle, is_timed)

    def layer_seconds(self) -> dict[str, list[float]]:
        """The seconds of all threads together in each layer since `time_layers`, forward and backward."""
        count = len(self.weight_shapes)
        seconds = self._ffi.new(f"double[{2 * count}]")
        self._functions.rl_trunk_layer_seconds(self._handle, seconds)
        return {"forward": list(seconds[0:count]), "backward": list(seconds[count : 2 * count])}

    def forward(
        self, images: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], saved: Tensor | None = None
    ) -> Tensor:
        """[B, H, W, 3] bytes to [B, num_features] after the last ReLU; fills `saved` for a backward pass."""
        features = torch.empty(len(images), self.num_features, dtype=torch.float32, device="cpu")
        with clock("convolutions", len(images)):
            code = self._functions.rl_trunk_forward(
                self._handle,
                self._pointers(weights),
                self._pointers(biases),
                self._pointer("uint8_t *", images),
                len(images),
                self._pointer("float *", features),
                self._ffi.NULL if saved is None else self._pointer("char *", saved),
                self._threads(),
            )
        self._check(code)
        return features

    def backward(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        gradient: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients of weights and biases. `inputs` are the images, features and saved of the forward pass."""
        images, features, saved = inputs
        weight_gradients = [torch.empty_like(weight) for weight in weights]
        bias_gradients = [torch.empty_like(bias) for bias in biases]
        with clock("convolutions", len(images)):
            code = self._functions.rl_trunk_backward(
                self._handle,
                self._pointers(weights),
                self._pointers(biases),
                self._pointer("uint8_t *", images),
                len(images),
                self._pointer("float *", features),
                self._pointer("float *", gradient),
                self._pointer("char *", saved),
                self._pointers(weight_gradients),
                self._pointers(bias_gradients),
                self._threads(),
            )
        self._check(code)
        return weight_gradients, bias_gradients

    def layer(
        self,
        kind: str,
        index: int,
        sizes: tuple[int, int, int],
        tensors: dict[str, Tensor],
        parameters: tuple[Sequence[Tensor], Sequence[Tensor]],
    ) -> None:
        """One layer alone, for tests and benchmarks: native/layer_task.hpp describes the tensors.

        `sizes` are images, height and width. `weight_gradient` and `bias_gradient` are among the tensors of "backward".
        """
        if index == 0 and "images" in tensors and sizes[1:] != self.image_shape[:2]:
            raise ValueError(f"the first layer is for images of {self.image_shape}")
        task = self._ffi.new("LayerTask *")
        task.kind, task.index = LAYER_KINDS.index(kind), index
        task.num_images, task.height, task.width = sizes
        gradients = []
        for name in ("weight_gradient", "bias_gradient"):
            gradients.append(self._pointer("float *", tensors[name]) if name in tensors else self._ffi.NULL)
        for name, tensor in tensors.items():
            if not name.endswith("_gradient"):
                setattr(task, name, self._pointer("uint8_t *" if tensor.dtype == torch.uint8 else "float *", tensor))
        weights, biases = (self._pointers(group) for group in parameters)
        self._check(self._functions.rl_trunk_layer(self._handle, weights, biases, task, *gradients))

    def take_memory(self, num_images: int) -> Tensor:
        """Memory for what a forward pass saves: that of an earlier pass, if its backward pass is done."""
        size = num_images * self.saved_bytes
        with self._lock:
            for k, memory in enumerate(self._free):
                if len(memory) >= size:
                    return self._free.pop(k)
            self._free.clear()  # too small for this pass
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def give_back(self, memory: Tensor) -> None:
        with self._lock:
            self._free = [memory, *self._free][:KEPT_BUFFERS]

    def _pointer(self, kind: str, tensor: Tensor) -> Any:
        return self._ffi.cast(kind, tensor.data_ptr())

    def _pointers(self, tensors: Sequence[Tensor]) -> Any:
        if len(tensors) != len(self.weight_shapes):
            raise ValueError(f"{len(tensors)} tensors for {len(self.weight_shapes)} layers")
        return self._ffi.new("float *[]", [self._pointer("float *", tensor) for tensor in tensors])

    def _check(self, code: int) -> None:
        if code:
            raise UserError(
                "the kernels got no memory or no threads; use a smaller hardware.chunk_size or fewer num_threads",
                EXIT_RUN_FAILED,
            )
