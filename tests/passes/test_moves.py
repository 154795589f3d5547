"""Reshapes and transpositions between convolutions, on tensors whose channels lie last."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional

from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import Program, compile_in_process


class Between(nn.Module):
    """A convolution, the move `how`, and a convolution of what it makes."""

    def __init__(self, how: str, after: int) -> None:
        super().__init__()
        self.how = how
        self.first, self.last = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(after, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        n, c, h, w = x.shape
        if self.how == "channel shuffle":
            x = x.reshape(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w)
        elif self.how == "pixel shuffle":
            x = functional.pixel_shuffle(x, 2)
        elif self.how == "pixel unshuffle":
            x = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(n, 4 * c, h // 2, w // 2)
        elif self.how == "image turned":
            x = x.transpose(2, 3)
        elif self.how == "channels joined with rows":
            x = x.reshape(n, c // 2, 2 * h, w)
        return self.last(x)


def check(program: Program, net: nn.Module, x: torch.Tensor) -> None:
    wanted = net(x)
    got = program(x.numpy()).values()
    for one, expected in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(torch.from_numpy(one), expected.detach(), rtol=1e-4, atol=1e-4)


MOVES = {
    "channel shuffle": (24, 1),
    "pixel shuffle": (6, 1),
    "pixel unshuffle": (96, 1),
    "image turned": (24, None),
    "channels joined with rows": (12, None),
}


@pytest.mark.parametrize("how", MOVES)
@pytest.mark.sampled(1, 5)
def test_moves_keep_the_channels_last(how: str) -> None:
    """Equal to torch; nothing but the move itself is transposed between the input and the output."""
    torch.manual_seed(0)
    after, moves = MOVES[how]
    net, x = Between(how, after).eval(), torch.randn(2, 3, 10, 6)
    program = compile_in_process(import_module(net, (x,)))
    check(program, net, x)
    names = [f.function for f in program.reports.schedule.functions]
    if moves is not None:
        assert sum("transpose" in name for name in names) == 2 + moves, names


@pytest.mark.slow
def test_open_images_are_shuffled() -> None:
    """The sizes of the image stay open, as does the batch."""
    torch.manual_seed(0)
    n, h, w = (torch.export.Dim(name, min=2, max=64) for name in "nhw")
    for how in ("channel shuffle", "pixel shuffle"):
        net = Between(how, MOVES[how][0]).eval()
        example = torch.randn(2, 3, 10, 6)
        program = compile_in_process(import_module(net, (example,), dynamic_shapes=({0: n, 2: h, 3: w},)))
        for shape in ((2, 3, 10, 6), (3, 3, 5, 17)):
            check(program, net, torch.randn(shape))


class Places(nn.Module):
    """Places of an image as rows, as a transformer behind convolutions reads them; and their mean as a row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 24, 3), nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.relu(self.first(x))
        return self.last(x.flatten(2).transpose(1, 2)), self.last(x.mean((2, 3), keepdim=True).flatten(1))


def test_rows_of_places_are_a_view() -> None:
    """Flattening behind a convolution, and what moves axes of one element only, take no kernel."""
    torch.manual_seed(0)
    net, x = Places().eval(), torch.randn(2, 3, 10, 6)
    program = compile_in_process(import_module(net, (x,)))
    check(program, net, x)
    names = [f.function for f in program.reports.schedule.functions]
    assert sum("transpose" in name for name in names) == 1, names  # of the input
