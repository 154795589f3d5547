"""Nets that torch.compile is measured on: plain torch modules and transformers' own, by configuration, random weights.

Each is a function that gives (module in eval mode, inputs for a batch of n).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Net = tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]


def convolution(channels: int, filters: int, kernel: int = 3, stride: int = 1, groups: int = 1, act=nn.ReLU):
    """Convolution, batch norm with means and variances of its own, activation."""
    norm = nn.BatchNorm2d(filters)
    nn.init.normal_(norm.running_mean, std=0.1)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return nn.Sequential(
        nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False), norm, act()
    )


class Residual(nn.Module):
    """`inner` of x, plus x."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def images(size: int, channels: int = 3) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, channels, size, size),)


def tokens(vocabulary: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randint(1, vocabulary, (n, length)),)


def transformer(kind: str, model: str, length_or_size: int, pick: Callable, **config: object) -> Net:
    """A model of transformers by its configuration; `pick` takes the tensor to return out of its output."""
    import transformers

    made = getattr(transformers, kind)(**config)

    class Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = getattr(transformers, model)(made)

        def forward(self, x: Tensor) -> Tensor:
            return pick(self.net(x))

    vocabulary = getattr(made, "vocab_size", None)
    give = tokens(vocabulary, length_or_size) if vocabulary else images(length_or_size)
    return Only().eval(), give


def last(output) -> Tensor:
    return output.last_hidden_state


def logits(output) -> Tensor:
    return output.logits


def resnet() -> Net:
    return transformer(
        "ResNetConfig",
        "ResNetForImageClassification",
        224,
        logits,
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
    )


def mobilenet() -> Net:
    """Inverted bottlenecks with depthwise convolutions and ReLU6."""

    def block(channels: int, hidden: int) -> nn.Module:
        return Residual(
            convolution(channels, hidden, 1, act=nn.ReLU6),
            convolution(hidden, hidden, 3, groups=hidden, act=nn.ReLU6),
            convolution(hidden, channels, 1, act=nn.Identity),
        )

    def reduce(channels: int, filters: int) -> nn.Module:
        hidden = 6 * channels
        return nn.Sequential(
            convolution(channels, hidden, 1, act=nn.ReLU6),
            convolution(hidden, hidden, 3, 2, hidden, act=nn.ReLU6),
            convolution(hidden, filters, 1, act=nn.Identity),
        )

    layers: list[nn.Module] = [convolution(3, 16, 3, 2, act=nn.ReLU6)]
    channels = 16
    for filters in (24, 40, 80, 160):
        layers += [reduce(channels, filters), block(filters, 6 * filters), block(filters, 6 * filters)]
        channels = filters
    head = [convolution(160, 960, 1, act=nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1000)]
    return nn.Sequential(*layers, *head).eval(), images(224)


def unet() -> Net:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [16, 32, 64, 128]
            pairs = list(zip([3, *widths], widths))
            self.down = nn.ModuleList(nn.Sequential(convolution(a, b), convolution(b, b)) for a, b in pairs)
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
            self.join = nn.ModuleList(nn.Sequential(convolution(2 * a, a), convolution(a, a)) for a in widths[:-1])
            self.head = nn.Conv2d(16, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            kept = []
            for i, layer in enumerate(self.down):
                x = layer(nn.functional.max_pool2d(x, 2) if i else x)
                kept.append(x)
            for up, join, skip in zip(reversed(self.up), reversed(self.join), reversed(kept[:-1])):
                x = join(torch.cat([skip, up(x)], 1))
            return self.head(x)

    return UNet().eval(), images(128)


def detector() -> Net:
    """A small one-stage detector: SiLU, upsampling, concatenations, boxes out of a grid."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def c(a, b, k, s):
                return convolution(a, b, k, s, act=nn.SiLU)

            self.low = nn.Sequential(c(3, 16, 3, 2), c(16, 32, 3, 2), c(32, 32, 3, 1), c(32, 64, 3, 2))
            self.high = nn.Sequential(c(64, 128, 3, 2), Residual(c(128, 64, 1, 1), c(64, 128, 3, 1)))
            self.join = c(192, 64, 3, 1)
            self.heads = nn.ModuleList([nn.Conv2d(64, 85, 1), nn.Conv2d(128, 85, 1)])

        def forward(self, x: Tensor) -> Tensor:
            low = self.low(x)
            high = self.high(low)
            joined = self.join(torch.cat([low, nn.functional.interpolate(high, scale_factor=2.0)], 1))
            found = [head(y).flatten(2).transpose(1, 2) for head, y in zip(self.heads, (joined, high))]
            found = torch.cat(found, 1)
            return torch.cat([found[..., :4].exp(), found[..., 4:].sigmoid()], -1)

    return Detector().eval(), images(256)


def mlp() -> Net:
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers).eval(), lambda n: (torch.randn(n, 64),)


def wide_and_deep() -> Net:
    """Numbers and categories of a table: embeddings, a deep part, a linear one."""

    class WideAndDeep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(8))
            self.norm = nn.BatchNorm1d(13)
            self.deep = nn.Sequential(
                nn.Linear(8 * 16 + 13, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
            )
            self.wide = nn.Linear(13, 1)

        def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
            numbers = self.norm(numbers)
            found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
            return torch.sigmoid(self.deep(torch.cat([*found, numbers], 1)) + self.wide(numbers))

    return WideAndDeep().eval(), lambda n: (torch.randint(0, 1000, (n, 8)), torch.randn(n, 13))


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, 128)
        self.recurrent = kind(128, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, 17)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embed(ids))[0])


def temporal() -> Net:
    """Dilated 1-D convolutions."""

    def block(dilation: int) -> nn.Module:
        return Residual(nn.Conv1d(64, 64, 3, padding=dilation, dilation=dilation), nn.ReLU(), nn.Conv1d(64, 64, 1))

    net = nn.Sequential(nn.Conv1d(40, 64, 1), *(block(1 << i) for i in range(6)), nn.Conv1d(64, 29, 1))
    return net.eval(), lambda n: (torch.randn(n, 40, 200),)


def encoder() -> Net:
    """torch's own encoder layers."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="gelu")
    net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return net.eval(), lambda n: (torch.randn(n, 96, 256),)


_BERT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_DECODER = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 5000}

NETS: dict[str, Callable[[], Net]] = {
    "MLP of three layers": mlp,
    "wide and deep": wide_and_deep,
    "LSTM tagger": lambda: (Tagger(nn.LSTM).eval(), tokens(5000, 64)),
    "GRU tagger": lambda: (Tagger(nn.GRU).eval(), tokens(5000, 64)),
    "temporal convolutions": temporal,
    "ResNet-18": resnet,
    "RegNet": lambda: transformer(
        "RegNetConfig",
        "RegNetForImageClassification",
        224,
        logits,
        hidden_sizes=[48, 96, 192, 384],
        depths=[1, 2, 4, 1],
    ),
    "MobileNetV2-like": mobilenet,
    "ConvNeXt, small": lambda: transformer(
        "ConvNextConfig", "ConvNextModel", 224, last, hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2]
    ),
    "U-Net": unet,
    "detector": detector,
    "ViT, small": lambda: transformer("ViTConfig", "ViTModel", 224, last, **_BERT),
    "Swin, small": lambda: transformer(
        "SwinConfig", "SwinModel", 224, last, embed_dim=48, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16]
    ),
    "SegFormer, small": lambda: transformer(
        "SegformerConfig", "SegformerForSemanticSegmentation", 128, logits, depths=[1, 1, 1, 1]
    ),
    "torch's encoder": encoder,
    "BERT, small": lambda: transformer("BertConfig", "BertModel", 96, last, vocab_size=5000, **_BERT),
    "DistilBERT classifier": lambda: transformer(
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        96,
        logits,
        vocab_size=5000,
        dim=256,
        n_layers=4,
        n_heads=4,
        hidden_dim=1024,
    ),
    "T5 encoder": lambda: transformer(
        "T5Config",
        "T5EncoderModel",
        96,
        last,
        vocab_size=5000,
        d_model=256,
        d_ff=1024,
        d_kv=64,
        num_heads=4,
        num_layers=4,
    ),
    "GPT-2, small": lambda: transformer(
        "GPT2Config", "GPT2LMHeadModel", 96, logits, n_embd=256, n_layer=4, n_head=4, vocab_size=5000, use_cache=False
    ),
    "Llama, small": lambda: transformer(
        "LlamaConfig",
        "LlamaForCausalLM",
        96,
        logits,
        intermediate_size=688,
        num_key_value_heads=2,
        use_cache=False,
        **_DECODER,
    ),
}
