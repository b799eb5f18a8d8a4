"""Each kind of layer, forward and backward, in each instruction set, against PyTorch in float64.

Error bounds. A Winograd output is a sum over 36 products that partly cancel: in the worst case rounding grows by the
norms of the transforms, (19 * 10 * 1)^2 * 6e-8 = 2e-3 of the sum of |w| |x| over the kernel. Rounding errors do not
conspire: what is measured is below 3e-6 of that sum, and BOUND leaves a factor of seven. Direct convolution is
bounded by 27 * 6e-8 = 2e-6 in the worst case.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from rlcluster.networks.kernels.library import INSTRUCTION_SETS, Trunk, load

BOUND = 2e-5
SIDE = 64
CHANNELS = [(3, 16), *([(16, 16)] * 4), (16, 32), *([(32, 32)] * 9)]
SIZES = [SIDE, *([SIDE // 2] * 5), *([SIDE // 4] * 5), *([SIDE // 8] * 4)]  # of each layer's convolution
ENTRIES, FIRSTS, SECONDS = (5, 10), (1, 6, 11), (2, 9, 14)

pytestmark = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
draws = torch.Generator().manual_seed(0)


def trunk_for(instruction_set: str) -> Trunk:
    if instruction_set not in load().supported():
        pytest.skip(f"this processor has no {instruction_set}")
    return Trunk("impala", SIDE, SIDE, instruction_set)


def random_parameters() -> tuple[list[Tensor], list[Tensor]]:
    weights = [torch.randn(o, i, 3, 3, generator=draws) / math.sqrt(9 * i) for i, o in CHANNELS]
    biases = [torch.randn(o, generator=draws) for _, o in CHANNELS]
    return [weight.contiguous(memory_format=torch.channels_last) for weight in weights], biases


PARAMETERS = random_parameters()


def padded(x: Tensor) -> Tensor:
    """[B, C, H, W] to the kernels' layout, [B, H + 2, W + 2, C]."""
    return functional.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).contiguous()


def plain(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def back(x: Tensor) -> Tensor:
    """[B, H, W, C] to PyTorch's layout."""
    return x.permute(0, 3, 1, 2)


def convolve(x: Tensor, index: int) -> Tensor:
    weights, biases = PARAMETERS
    return functional.conv2d(x.double(), weights[index].double(), biases[index].double(), padding=1)


def magnitude(x: Tensor, weight: Tensor) -> float:
    """The largest sum of |w| |x| over a kernel: what rounding errors are measured by."""
    return float(functional.conv2d(x.double().abs(), weight.double().abs(), padding=1).max())


def forward(trunk: Trunk, index: int, x: Tensor, residual: Tensor | None = None) -> dict[str, Tensor]:
    """Runs layer `index` on x [B, C, H, W]; the results are [B, C, H, W] too."""
    size, outputs = SIZES[index], CHANNELS[index][1]
    shape = len(x), size, size, outputs
    results = {"output": torch.full(shape, math.nan), "sum": torch.full(shape, math.nan)}
    tensors = {"input": padded(x), **results}
    if residual is not None:
        tensors["residual"] = plain(residual)
    trunk.layer("forward", index, (len(x), size, size), tensors, PARAMETERS)
    return {name: back(result) for name, result in results.items()}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=draws)


def input_for(index: int, num_images: int) -> Tensor:
    return normal(num_images, CHANNELS[index][0], SIZES[index], SIZES[index])


@pytest.mark.parametrize("index", [*ENTRIES, *FIRSTS, *SECONDS])
@settings(max_examples=8, deadline=None)
@given(num_images=st.integers(1, 9))
def test_convolutions_equal_their_definition(instruction_set: str, index: int, num_images: int) -> None:
    trunk, x = trunk_for(instruction_set), input_for(index, num_images)
    expected = convolve(x, index)
    bound = BOUND * magnitude(x, PARAMETERS[0][index])
    if index in SECONDS:
        residual = normal(*expected.shape)
        results = forward(trunk, index, x, residual)
        assert (results["sum"] - (expected + residual)).abs().max() < bound
        assert torch.equal(results["output"], torch.relu(results["sum"]))
        return
    result = forward(trunk, index, x)["output"]
    assert (result - (torch.relu(expected) if index in FIRSTS else expected)).abs().max() < bound


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-20, 1e15])
def test_zeros_denormal_and_large_numbers(instruction_set: str, scale: float) -> None:
    trunk, x = trunk_for(instruction_set), input_for(5, 2) * scale
    result = forward(trunk, 5, x)["output"]
    bound = BOUND * magnitude(x, PARAMETERS[0][5]) + 1e-6 * float(PARAMETERS[1][5].abs().max())
    assert (result - convolve(x, 5)).abs().max() <= bound
    if scale == 0:
        assert torch.equal(result, PARAMETERS[1][5].view(1, -1, 1, 1).expand_as(result))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [1, 5, 14])
def test_a_bad_value_stays_in_its_sample(instruction_set: str, index: int, bad: float) -> None:
    trunk, x = trunk_for(instruction_set), input_for(index, 6)
    residual = normal(6, CHANNELS[index][1], SIZES[index], SIZES[index])
    clean = forward(trunk, index, x, residual)["output"]
    x[3, 7, 2, 5] = bad
    result = forward(trunk, index, x, residual)["output"]
    others = [0, 1, 2, 4, 5]
    assert torch.equal(result[others], clean[others])
    assert not result[3].isfinite().all()
    assert not result[3, :, 1:4, 4:7].isfinite().any(0).any()  # wherever the definition reads it


@pytest.mark.parametrize("index", [*ENTRIES, *FIRSTS, *SECONDS])
@settings(max_examples=8, deadline=None)
@given(num_images=st.integers(1, 9))
def test_gradients_equal_those_of_autograd(instruction_set: str, index: int, num_images: int) -> None:
    """With the ReLU before a layer of a block: the kernels get its result, and gate the gradient by it."""
    trunk, (inputs, outputs), size = trunk_for(instruction_set), CHANNELS[index], SIZES[index]
    before = input_for(index, num_images)
    gradient = normal(num_images, outputs, size, size)
    leaf = before.double().requires_grad_()
    x = leaf if index in ENTRIES else torch.relu(leaf)
    weight, bias = (group[index].detach().double().requires_grad_() for group in PARAMETERS)
    functional.conv2d(x, weight, bias, padding=1).backward(gradient.double())
    residual = normal(num_images, inputs, size, size) if index in FIRSTS else torch.zeros_like(before)
    results = {
        "output": torch.full((num_images, size, size, inputs), math.nan),
        "weight_gradient": torch.full_like(PARAMETERS[0][index], math.nan),
        "bias_gradient": torch.full_like(PARAMETERS[1][index], math.nan),
    }
    tensors = {"input": padded(x.detach().float()), "gradient": padded(gradient), "residual": plain(residual)}
    trunk.layer("backward", index, (num_images, size, size), {**tensors, **results}, PARAMETERS)
    expected = leaf.grad + residual
    swapped = PARAMETERS[0][index].transpose(0, 1)
    assert (back(results["output"]) - expected).abs().max() < BOUND * magnitude(gradient, swapped)
    products = float((x.detach().abs().sum() * gradient.double().abs().mean()) / inputs)
    assert (results["weight_gradient"] - weight.grad).abs().max() < BOUND * products
    assert (results["bias_gradient"] - bias.grad).abs().max() < BOUND * float(gradient.abs().sum()) / outputs


def test_the_first_layer_from_bytes(instruction_set: str) -> None:
    trunk = trunk_for(instruction_set)
    images = torch.randint(0, 256, (3, SIDE, SIDE, 3), dtype=torch.uint8, generator=draws)
    x = back(images).double() / 255
    weight, bias = (group[0].detach().double().requires_grad_() for group in PARAMETERS)
    expected = functional.conv2d(x, weight, bias, padding=1)
    result = torch.full((3, SIDE, SIDE, 16), math.nan)
    trunk.layer("forward", 0, (3, SIDE, SIDE), {"images": images, "output": result}, PARAMETERS)
    assert (back(result) - expected).abs().max() < BOUND / 10 * magnitude(x, weight.detach())
    gradient = normal(*expected.shape)
    expected.backward(gradient.double())
    results = {
        "weight_gradient": torch.full_like(PARAMETERS[0][0], math.nan),
        "bias_gradient": torch.full_like(PARAMETERS[1][0], math.nan),
    }
    tensors = {"images": images, "gradient": plain(gradient), **results}
    trunk.layer("backward", 0, (3, SIDE, SIDE), tensors, PARAMETERS)
    bound = BOUND * float(gradient.abs().sum()) / 16
    assert (results["weight_gradient"] - weight.grad).abs().max() < bound
    assert (results["bias_gradient"] - bias.grad).abs().max() < bound


def pool(trunk: Trunk, index: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima, maxima after a ReLU, and the positions (0 to 8) of the maxima, [B, C, H / 2, W / 2]."""
    num_images, channels, size = x.shape[:3]
    shape = num_images, size // 2, size // 2, channels
    maxima, rectified = torch.full(shape, math.nan), torch.full(shape, math.nan)
    positions = torch.full(shape, 99, dtype=torch.uint8)
    tensors = {"input": plain(x), "sum": maxima, "output": rectified, "positions": positions}
    trunk.layer("pool", index, (num_images, size, size), tensors, PARAMETERS)
    return back(maxima), back(rectified), back(positions)


def with_ties(*shape: int) -> Tensor:
    return torch.randint(-1, 2, shape, generator=draws).float()


@pytest.mark.parametrize("make", [normal, with_ties, torch.zeros, lambda *shape: -normal(*shape).abs()])
@pytest.mark.parametrize(("index", "channels"), [(0, 16), (5, 32)])
def test_pooling_and_its_gradient_equal_torch(instruction_set: str, index: int, channels: int, make: object) -> None:
    trunk, x = trunk_for(instruction_set), make(2, channels, 32, 32)
    leaf = x.clone().requires_grad_()
    expected, indices = functional.max_pool2d(leaf, 3, stride=2, padding=1, return_indices=True)
    maxima, rectified, positions = pool(trunk, index, x)
    assert torch.equal(maxima, expected)
    assert torch.equal(rectified, torch.relu(expected))
    rows = torch.arange(16).view(-1, 1) * 2 - 1 + positions.long() // 3
    columns = torch.arange(16) * 2 - 1 + positions.long() % 3
    assert torch.equal(rows * 32 + columns, indices)
    gradient = normal(*expected.shape)
    expected.backward(gradient)
    for k in range(2):
        result = torch.full((1, 32, 32, channels), math.nan)
        readable = functional.pad(plain(positions)[k].flatten(), (0, 17 * channels))  # a row and a pixel beyond
        tensors = {"gradient": padded(gradient)[k], "positions": readable, "output": result}
        trunk.layer("unpool", index, (1, 32, 32), tensors, PARAMETERS)
        torch.testing.assert_close(back(result)[0], leaf.grad[k], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pixel", [(0, 0), (0, 1), (1, 0), (1, 1), (31, 31), (15, 16)])
def test_a_nan_wins_every_window_that_holds_it(instruction_set: str, pixel: tuple[int, int]) -> None:
    trunk, x = trunk_for(instruction_set), normal(2, 16, 32, 32)
    x[1, 3, *pixel] = math.nan
    expected = functional.max_pool2d(x, 3, stride=2, padding=1)
    maxima, rectified, _ = pool(trunk, 0, x)
    assert torch.equal(maxima.isnan(), expected.isnan())
    assert torch.equal(rectified.isnan(), expected.isnan())
