"""A launch that layers repeat: what Triton found for the first one serves the others, which bring their tensors."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from minivllm.kernels.launch import LayerLaunch, LayerTensors


class Kernel:
    """As Triton has it: a launch returns the compiled program, which can be launched with all arguments in order."""

    arg_names = ("out_ptr", "query_ptr", "boxes", "scale", "tile", "early")

    def __init__(self, is_interpreted: bool = False) -> None:
        self.compiles = not is_interpreted
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, num_warps: int, **named: Any) -> Any:
            given = dict(zip(self.arg_names, arguments, strict=False)) | named
            self.launched.append(("through Triton", grid, *seen(given[name] for name in self.arg_names), num_warps))
            return self.Program(self) if self.compiles else None

        return launch

    class Program:
        def __init__(self, kernel: Kernel) -> None:
            self._kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *arguments: self._kernel.launched.append(("program", grid, *seen(arguments)))


def seen(arguments: Any) -> list[Any]:
    """Tensors as their numbers, by the time of the launch."""
    bases = [argument.base if isinstance(argument, SimpleNamespace) else argument for argument in arguments]
    return [base.item() if isinstance(base, torch.Tensor) else base for base in bases]


def layer(number: int) -> LayerTensors:
    return LayerTensors(*(torch.tensor(10 * number + place) for place in range(6)))


def launched(kernel: Kernel) -> LayerLaunch:
    own, first = {"out_ptr": "out", "query_ptr": "query", "boxes": "value_pages"}, layer(1)
    boxes = SimpleNamespace(base=first.value_pages)
    return LayerLaunch(kernel, (7,), own, first.out, first.query, boxes, 0.5, tile=64, early=1, num_warps=4)


def test_the_first_layer_goes_through_triton_and_the_others_do_not() -> None:
    kernel = Kernel()
    launch = launched(kernel)
    launch.again(layer(2))
    launch.again(layer(3))
    assert kernel.launched == [
        ("through Triton", (7, 1, 1), 15, 10, 14, 0.5, 64, 1, 4),
        ("program", (7, 1, 1), 25, 20, 24, 0.5, 64, 1),
        ("program", (7, 1, 1), 35, 30, 34, 0.5, 64, 1),
    ]


def test_in_the_interpreter_all_layers_do_the_same() -> None:
    kernel = Kernel(is_interpreted=True)
    launched(kernel).again(layer(2))
    assert kernel.launched[1:] == [("through Triton", (7, 1, 1), 25, 20, 24, 0.5, 64, 1, 4)]


def test_no_tensor_of_a_layer_is_kept() -> None:
    launch = launched(Kernel())
    for number in (2, 3):
        kept = [launch._arguments["boxes"].base, *launch._arguments.values()]
        assert not [each for each in kept if isinstance(each, torch.Tensor)], "its memory is for the next layer"
        launch.again(layer(number))
