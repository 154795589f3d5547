"""Convolutional nets written plainly in PyTorch, with seeded weights, as ONNX files: what other engines are timed on.

    python scripts/nets.py DIRECTORY [NAME ...]        one .onnx for each net; all of them without a name

Weights are those of the initialisation, with statistics of batch normalisation that were made to fit: speed does not
depend on them, and results stay of a magnitude that can be compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn


def _conv(c: int, m: int, k: int, stride: int = 1, groups: int = 1, activation: type[nn.Module] | None = nn.ReLU):
    """Convolution, batch normalisation, activation."""
    layers = [nn.Conv2d(c, m, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(m)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, and the input added."""

    def __init__(self, c: int, width: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        m = 4 * width
        inner = width * (2 if groups > 1 else 1)
        self.body = nn.Sequential(
            _conv(c, inner, 1), _conv(inner, inner, 3, stride, groups), _conv(inner, m, 1, activation=None)
        )
        self.short = nn.Identity() if c == m and stride == 1 else _conv(c, m, 1, stride, activation=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet50(groups: int = 1) -> nn.Module:
    """ResNet-50 (arXiv:1512.03385); in groups, ResNeXt-50 32x4d."""
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(c, width, stride if i == 0 else 1, groups))
            c = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


class Squeeze(nn.Module):
    """Channels times a gate made of their means."""

    def __init__(self, c: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, width, 1), nn.SiLU(), nn.Conv2d(width, c, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class Inverted(nn.Module):
    """Wide, depthwise, narrow (arXiv:1801.04381), with a gate where `squeeze` asks for one."""

    def __init__(self, c: int, m: int, k: int, stride: int, wider: int, activation: type[nn.Module], squeeze: bool):
        super().__init__()
        wide = c * wider
        layers = [_conv(c, wide, 1, activation=activation)] if wider > 1 else []
        layers.append(_conv(wide, wide, k, stride, wide, activation))
        layers += [Squeeze(wide, max(1, c // 4))] if squeeze else []
        self.body = nn.Sequential(*layers, _conv(wide, m, 1, activation=None))
        self.adds = c == m and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _inverted_net(
    first: int, last: int, rows: Sequence[tuple[int, ...]], activation: type[nn.Module], squeeze: bool
) -> nn.Module:
    layers, c = [_conv(3, first, 3, 2, activation=activation)], first
    for wider, m, count, stride, k in rows:
        for i in range(count):
            layers.append(Inverted(c, m, k, stride if i == 0 else 1, wider, activation, squeeze))
            c = m
    head = [_conv(c, last, 1, activation=activation), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1000)]
    return nn.Sequential(*layers, *head)


def mobilenet_v2() -> nn.Module:
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    return _inverted_net(32, 1280, [(*row, 3) for row in rows], nn.ReLU6, squeeze=False)


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0 (arXiv:1905.11946)."""
    rows = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    return _inverted_net(32, 1280, rows, nn.SiLU, squeeze=True)


class Residual1d(nn.Module):
    """Convolutions of a signal in groups, and the input added."""

    def __init__(self, c: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(c, c, 9, padding=4, groups=groups), nn.ReLU(), nn.Conv1d(c, c, 9, padding=4, groups=groups)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


def residual_1d() -> nn.Module:
    """A residual net of one-dimensional convolutions, every second one in groups."""
    blocks = [Residual1d(64, groups) for groups in (1, 8, 1, 64)]
    return nn.Sequential(nn.Conv1d(12, 64, 15, 2, 7), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 27))


class Focus(nn.Module):
    """Every second pixel of every second row, four images side by side: the first layer of YOLOX."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        return torch.cat(parts, 1)


def focus() -> nn.Module:
    """The beginning of a detector: slices, and convolutions with SiLU."""
    silu = nn.SiLU
    widths = ((32, 64), (64, 128), (128, 256))
    return nn.Sequential(
        Focus(), _conv(12, 32, 3, activation=silu), *(_conv(c, m, 3, 2, activation=silu) for c, m in widths)
    )


class Basic(nn.Module):
    """Two convolutions of kernel 3, in two dimensions or in three, and the input added."""

    def __init__(self, c: int, m: int, stride: int, conv: type[nn.Module], norm: type[nn.Module]) -> None:
        super().__init__()
        first = [conv(c, m, 3, stride, 1, bias=False), norm(m), nn.ReLU()]
        self.body = nn.Sequential(*first, conv(m, m, 3, 1, 1, bias=False), norm(m))
        same = c == m and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(conv(c, m, 1, stride, bias=False), norm(m))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _of_basic_blocks(stem: Sequence[nn.Module], pool: nn.Module, conv: type[nn.Module], norm: type[nn.Module]):
    layers, c = [*stem], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Basic(c, width, stride, conv, norm), Basic(width, width, 1, conv, norm)]
        c = width
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(512, 1000))


def resnet18() -> nn.Module:
    """ResNet-18 (arXiv:1512.03385)."""
    stem = (_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
    return _of_basic_blocks(stem, nn.AdaptiveAvgPool2d(1), nn.Conv2d, nn.BatchNorm2d)


def r3d_18() -> nn.Module:
    """ResNet-18 of video (arXiv:1711.11248)."""
    first = nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
    return _of_basic_blocks((first, nn.BatchNorm3d(64), nn.ReLU()), nn.AdaptiveAvgPool3d(1), nn.Conv3d, nn.BatchNorm3d)


def vgg16() -> nn.Module:
    """VGG-16 (arXiv:1409.1556)."""
    layers: list[nn.Module] = []
    c = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(c, width, 3, padding=1), nn.ReLU()]
            c = width
        layers.append(nn.MaxPool2d(2))
    wide = (nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
    return nn.Sequential(*layers, nn.Flatten(), *wide)


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, joined at each size (arXiv:1505.04597)."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths))
        self.down = nn.ModuleList(nn.Sequential(_conv(c, m, 3), _conv(m, m, 3)) for c, m in pairs)
        steps = list(zip(widths[::-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(c, m, 2, 2) for c, m in steps)
        self.join = nn.ModuleList(nn.Sequential(_conv(2 * m, m, 3), _conv(m, m, 3)) for _, m in steps)
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for i, down in enumerate(self.down):
            x = down(torch.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, join, side in zip(self.up, self.join, kept[-2::-1]):
            x = join(torch.cat([up(x), side], 1))
        return self.last(x)


def temporal() -> nn.Module:
    """Eight convolutions of a sequence of feature vectors."""
    layers = [(nn.Conv1d(80 if i == 0 else 256, 256, 3, padding=1), nn.ReLU()) for i in range(8)]
    return nn.Sequential(*(layer for pair in layers for layer in pair))


class Pyramid(nn.Module):
    """Features of four sizes, each added to the interpolated one above it and all interpolated to the largest
    (arXiv:1612.03144, with the head of arXiv:1901.02446); the scores of eight classes at every pixel."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = [32 * 2**i for i in range(4)]
        self.first = _conv(3, 32, 3, 2)
        self.down = nn.ModuleList(_conv(c, m, 3, 2) for c, m in zip([32, *widths], widths))
        self.side = nn.ModuleList(nn.Conv2d(m, width, 1) for m in widths)
        self.smooth = nn.ModuleList(_conv(width, width, 3) for _ in widths)
        self.last = nn.Conv2d(4 * width, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def to(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(y, size=wanted.shape[2:], mode="bilinear", align_corners=False)

        y, sides = self.first(x), []
        for down, side in zip(self.down, self.side):
            y = down(y)
            sides.append(side(y))
        for i in (2, 1, 0):
            sides[i] = sides[i] + to(sides[i + 1], sides[i])
        smooth = [smooth(side) for smooth, side in zip(self.smooth, sides)]
        joined = torch.cat([smooth[0], *(to(part, smooth[0]) for part in smooth[1:])], 1)
        return to(self.last(joined), x).softmax(1)


# name -> (how to make it, shape of its input)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (resnet50, (1, 3, 224, 224)),
    "resnext50": (lambda: resnet50(32), (1, 3, 224, 224)),
    "mobilenet-v2": (mobilenet_v2, (1, 3, 224, 224)),
    "efficientnet-b0": (efficientnet_b0, (1, 3, 224, 224)),
    "residual-1d": (residual_1d, (1, 12, 4096)),
    "focus": (focus, (1, 3, 416, 416)),
    "resnet18": (resnet18, (1, 3, 224, 224)),
    "vgg16": (vgg16, (1, 3, 224, 224)),
    "unet": (UNet, (1, 3, 256, 256)),
    "pyramid": (Pyramid, (1, 3, 384, 384)),
    "r3d-18": (r3d_18, (1, 3, 16, 112, 112)),
    "temporal": (temporal, (1, 80, 1000)),
}


def export(name: str, directory: Path) -> Path:
    """`directory`/`name`.onnx, of fixed sizes."""
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(shape)
    with torch.no_grad():
        for _ in range(3):
            net.train()(x)  # moves the statistics towards what the activations are
    path = directory / f"{name}.onnx"
    torch.onnx.export(net.eval(), (x,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"])
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NETS)}")
    arguments = parser.parse_args()
    for name in arguments.names or NETS:
        print(export(name, arguments.directory))


if __name__ == "__main__":
    main()
