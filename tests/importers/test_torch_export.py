"""torch.export programs: compiled, they compute what torch computes, at the exported sizes and at others."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from halo_tvm.errors import InputError, UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.importers.torch_export import import_module, import_program, import_unrestricted
from halo_tvm.in_process import compile_in_process
from halo_tvm.passes.graph_pass import count_calls
from halo_tvm.passes.lift import apply_lift
from halo_tvm.reference import cases_of
from halo_tvm.relay_ops import OPERATORS

F = torch.nn.functional
DYNAMIC = torch.export.Dim.DYNAMIC


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def check(module, examples, *, others=(), dynamic_shapes=None):
    """Import, compile, compare with torch for `examples` and `others`; returns the imported model."""
    module = module.eval()
    model = import_module(module, examples, dynamic_shapes=dynamic_shapes)
    program = compile_in_process(model, threads=1, level=2)
    for inputs in (examples, *others):
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_flatten(module(*inputs))[0]
        found = program(*(x.numpy() for x in inputs))
        tensors = [w for w in wanted if isinstance(w, torch.Tensor)]
        assert len(found) == len(tensors)
        for value, want in zip(found.values(), tensors, strict=True):
            assert value.shape == tuple(want.shape) and value.dtype == want.numpy().dtype
            np.testing.assert_allclose(value, want.numpy(), rtol=1e-4, atol=1e-5)
    return model


def operators(model) -> dict[str, int]:
    return {n.removeprefix("halo."): c for n, c in count_calls(model.mod["main"]).items() if n.startswith("halo.")}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Block(torch.nn.Module):
    """Embedding, norms, grouped attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.q, self.kv = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.rms = torch.nn.RMSNorm(32)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32, bias=False)
        self.head = torch.nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids, attention_mask):
        b, s = input_ids.shape
        x = self.norm(self.embed(input_ids))
        q = self.q(x).view(b, s, 4, 8).transpose(1, 2)
        k, v = (t.view(b, s, 2, 8).transpose(1, 2) for t in self.kv(x).split(16, dim=-1))
        k, v = (t[:, :, None].expand(b, 2, 2, s, 8).reshape(b, 4, s, 8) for t in (k, v))
        mask = attention_mask.bool()[:, None, None, :].expand(b, 1, s, s)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.rms(x + y.transpose(1, 2).reshape(b, s, 32))
        return {"logits": self.head(x + self.down(F.silu(self.up(x))))}


@pytest.fixture(scope="module")
def block():
    ids = torch.arange(10).reshape(2, 5)
    other = torch.arange(21).reshape(3, 7)
    shapes = tuple({0: DYNAMIC(min=1, max=8), 1: DYNAMIC(min=2, max=64)} for _ in range(2))
    ragged = torch.ones_like(other)
    ragged[1, 3:] = 0
    return check(Block(), (ids, torch.ones_like(ids)), others=[(other, ragged)], dynamic_shapes=shapes)


def test_operators_arrive_whole(block) -> None:
    assert operators(block) == {"attention": 1, "embedding": 1, "layer_norm": 1, "linear": 5, "rms_norm": 1}


def test_repeated_heads_and_padding_masks_become_attributes(block) -> None:
    attention = next(line for line in block.mod.script().splitlines() if "halo.attention" in line)
    assert "num_kv_heads=2" in attention.replace('"', "").replace(": ", "=")
    assert "has_key_mask" in attention and "has_bias" not in attention


def test_names_ranges_and_tied_weights(block) -> None:
    ids, mask = block.inputs
    assert (ids.name, ids.shape, ids.values) == ("input_ids", ("batch", "sequence"), (0, 49))
    assert (mask.name, mask.default) == ("attention_mask", "ones")
    assert block.ranges == {"batch": (1, 8), "sequence": (1, 64)}
    assert block.outputs == ("logits",)
    assert ("embed.weight" in block.params) != ("head.weight" in block.params)
    assert {"q.weight", "q.bias", "rms.weight"} <= set(block.params.sources)


def heads(b: int, h: int, s: int, d: int = 8) -> torch.Tensor:
    return normal(b, h, s, d)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True, scale=0.3),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(5, 5).tril().bool()),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=q[:, :, :, :5].mean(1, keepdim=True)),
        lambda q, k, v: F.scaled_dot_product_attention(q[:, :, :3], k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]),
        lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0], attn_mask=q[0, :, :, :1] > 0),
    ],
    ids=[
        "plain",
        "causal",
        "grouped",
        "bool mask",
        "float mask",
        "causal, fewer queries",
        "one head",
        "one head, mask",
    ],
)
@pytest.mark.sampled(2)
def test_attention_forms(function) -> None:
    check(Function(function), (heads(2, 4, 5), heads(2, 4, 5) + 1, heads(2, 4, 5) - 1))


X, I = normal(3, 4, 6), torch.tensor([[2, 0, -1], [1, 1, 0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: (x > 0).cumsum(-1),
        lambda x, i: x[i, :, 1:5:2],
        lambda x, i: x[:, i[:, :2], i[:, :2]],
        lambda x, i: x.gather(1, i[None, :, :].abs().expand(3, 2, 3)),
        lambda x, i: x.masked_fill(x < 0, 2.5).roll(2, 1).flip(0),
        lambda x, i: (x.var(1), x.std((0, 2)), x.amax(-1), x.amin(0), x.argmax(1), x.logsumexp(2)),
        lambda x, i: tuple(torch.linalg.vector_norm(x, order, 1) for order in (torch.inf, -torch.inf, 1, 3)),
        lambda x, i: x.topk(2, dim=1),
        lambda x, i: tuple(f((x * 9).to(t), 0.7) for f in (torch.remainder, torch.fmod) for t in (torch.half, x.dtype)),
        lambda x, i: (
            torch.searchsorted(torch.linspace(-2, 2, 200), x) + torch.bucketize(x.nan_to_num(), x[0, 0].sort()[0])
        ),
        lambda x, i: (x.round().cummax(1), (x.round() / (x > -1)).cummin(-1), i.cummax(0)),
        lambda x, i: ((x / (x > 0)).logcumsumexp(1), (x * 100).logcumsumexp(-1)),
        lambda x, i: x.sort(-1, descending=True),
        lambda x, i: (*(x / (x > -1)).median(1), x.median(), *(x / (x > -1)).nanmedian(-1), *x.kthvalue(2, 0, True)),
        lambda x, i: torch.maximum(x, x / 0 * (x > 0)),  # a name for a vector that is made of truth
        lambda x, i: (x.hypot(x.flip(0)), x.copysign(-x.T.T), torch.fmax(x, x / 0 * (x > 0)), x.signbit(), x.angle()),
        lambda x, i: (x.erfc(), (x * 9).erfc(), (x / 9).erfinv(), x.abs().lgamma(), x.digamma()),
        lambda x, i: (*torch.var_mean(x, 1), torch.addbmm(x[0], x[:, :, :4], x), torch.cdist(x, x[:, :2], p=1.5)),
        lambda x, i: (x.diagonal(1, 0, 2), x[0, :, :4].trace(), torch.pdist(x[0])),
        lambda x, i: (x.roll((1, 2, 3), (0, 1, 2)), x.roll((-5, 9), (1, 0))),
        lambda x, i: F.max_pool2d(F.pad(x[None], (1, 2, 0, 1)), 2, ceil_mode=True),
        lambda x, i: F.avg_pool2d(x[None], 3, 2, padding=1, count_include_pad=False),
        # A window longer than its image, which is cut off, as EfficientNet of transformers has it.
        lambda x, i: (F.avg_pool2d(x[None], 90, ceil_mode=True), F.max_pool2d(x[None], (5, 4), 3, ceil_mode=True)),
        lambda x, i: F.interpolate(x[None], scale_factor=1.5, mode="bilinear"),
        lambda x, i: F.adaptive_avg_pool2d(x[None], (3, 2)),
        lambda x, i: (x // 0.7, x % 0.7, torch.log1p(x.abs()), x.pow(3), i // 2, i % -2),
        lambda x, i: (F.gelu(x), F.gelu(x, approximate="tanh"), F.softplus(x), F.elu(x), F.hardswish(x)),
        lambda x, i: x.index_put((i[:, 0].abs(),), torch.ones(2, 4, 6), accumulate=True),
        lambda x, i: x.new_zeros(3, 4, 6).scatter(1, i.abs()[None].expand(3, 2, 3).contiguous(), 7.0),
        lambda x, i: tuple(
            x[0].scatter_reduce(0, (i.abs() % 2).repeat(1, 2), x[1], how, include_self=kept)
            for how, kept in (("amin", False), ("amax", False), ("prod", False), ("mean", False), ("mean", True))
        ),
        lambda x, i: torch.einsum("abc,adc->abd", x, x) + x.tril()[:, :, :4],
        lambda x, i: (torch.searchsorted(x.sort(-1)[0], x, right=True), torch.bucketize(x, x[0, 0].sort()[0])),
        lambda x, i: tuple(F.embedding_bag(i.abs(), x[0], mode=mode, padding_idx=1) for mode in ("sum", "mean", "max")),
        lambda x, i: F.embedding_bag(i.abs().flatten(), x[0], torch.stack([i[0, 1], i[1, 0], i[0, 0]]), mode="mean"),
        lambda x, i: (x, None, {"a": [i, torch.arange(3)]}),
        lambda x, i: tuple(
            f(x > 0, x[:, :1] > 0) for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
        ),
        lambda x, i: (*(x > 0).cummax(1), (x > 0).clamp_max(x > 1), ((x > 0) == True).all(-1)),  # noqa: E712
        lambda x, i: (
            *(x.index_reduce(1, i[0].abs(), x[:, :3], how) for how in ("amax", "mean")),
            x.put(i, x[0, :2, :3]),
            *(x.diagonal_scatter(x.diagonal(o, 0, 2) * 2, o, 0, 2) for o in (0, 2, -1)),
            x.sgn(),
            F.bilinear(x[0], x[1], x[:2, :, :1].expand(2, 4, 6)[:, :1].expand(2, 6, 6)),
        ),
        lambda x, i: (F.pad(x, (2, 3), "circular"), F.pad(x[None], (1, -2, -1, 2), "circular")),
        lambda x, i: (
            *torch.mode(x.round(), 1),
            *torch.mode(i, -1, keepdim=True),
            torch.renorm(x.sign().half(), 2, 1, 1.0),
        ),
    ],
)
@pytest.mark.sampled(8)
def test_operators_compute_what_torch_computes(function) -> None:
    check(Function(function), (X, I))


def test_convolutions() -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding="same", groups=2),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU6(),
        torch.nn.ConvTranspose2d(8, 6, 2, stride=2),
        torch.nn.GroupNorm(2, 6),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    )
    check(module, (normal(2, 4, 7, 6),), others=[(normal(3, 4, 7, 6),)], dynamic_shapes=({0: DYNAMIC(min=1, max=4)},))


class Standardised(torch.nn.Conv2d):
    """A kernel whose filters are normalised in every call, by a batch norm in training mode."""

    def forward(self, x):
        flat = F.batch_norm(self.weight.reshape(1, len(self.weight), -1), None, None, training=True)
        return F.conv2d(x, flat.reshape_as(self.weight), self.bias)


def test_what_a_module_computes_of_its_weights_alone_is_a_weight() -> None:
    torch.manual_seed(3)
    norm = torch.nn.utils.parametrizations.weight_norm
    module = torch.nn.Sequential(
        Standardised(4, 8, 3),
        norm(torch.nn.ConvTranspose2d(8, 6, 2, stride=2)),
        norm(torch.nn.Linear(8, 5)),
    )
    found = operators(check(module, (normal(2, 4, 6, 6),)))
    assert found == {"convolution": 2, "matmul": 1} or found == {"convolution": 2, "linear": 1}


@pytest.mark.slow
def test_convolutions_of_a_batch_joined_from_two_open_sizes() -> None:
    """What an unpadded one leaves, less than its input's length, has no size that is a variable of its own."""
    torch.manual_seed(2)
    module = torch.nn.Sequential(
        torch.nn.Flatten(0, 1),
        torch.nn.Conv1d(4, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv1d(8, 6, 3),
    )
    sizes = {0: DYNAMIC(min=1, max=8), 1: DYNAMIC(min=1, max=8), 3: DYNAMIC(min=4, max=64)}
    check(module, (normal(2, 3, 4, 20),), others=[(normal(1, 5, 4, 7),)], dynamic_shapes=(sizes,))


def test_views_by_strides_read_the_tensor_that_fills_their_memory() -> None:
    """Overlapping windows of a tensor, of a part of one and of one whose axes were turned; a batch that is open."""

    def function(x):
        y = x * 2
        rows, columns = y.shape[0], y[:, :, 2:6]
        windows = y.as_strided((rows, 3, 4, 6), (48, 12, 6, 1))  # 4 of 8 rows, every second
        part = columns.as_strided((rows, 8, 2), columns.stride(), columns.storage_offset() + 1)
        turned = y.transpose(1, 2).as_strided((rows, 4), (48, 7))
        return windows, part, turned, x[1:].as_strided((2, 3), (1, 4), 5)

    shapes = (({0: DYNAMIC(min=2, max=8)},),)
    check(Function(function), (normal(3, 8, 6),), others=[(normal(5, 8, 6),)], dynamic_shapes=shapes)


@pytest.mark.slow
def test_images_are_read_at_computed_places() -> None:
    def function(x, at):
        ways = (("bilinear", "zeros", False), ("bicubic", "border", True), ("nearest", "reflection", False))
        flat = [F.grid_sample(x, at[..., 0, :, :2], *way) for way in ways]
        return *flat, F.grid_sample(x[:, :, None].expand(-1, -1, 3, -1, -1), at, align_corners=True)

    check(Function(function), (normal(2, 3, 5, 7), normal(2, 4, 3, 2, 3)))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.sampled(1)
def test_what_is_read_at_places_that_are_no_numbers(padding) -> None:
    """Also a value behind all boundaries: NaN."""
    at = normal(2, 4, 3, 2)
    at[0, 0, 0], at[0, 1, 1, 0], at[1, 2, 0, 1], at[1, 3, 2, 0] = torch.nan, torch.nan, torch.nan, torch.inf

    def function(x, at):
        flat = [F.grid_sample(x, at, mode, padding, False) for mode in ("bilinear", "bicubic", "nearest")]
        return *flat, *(torch.bucketize(at, x[0, 0, 0].sort()[0], right=right) for right in (False, True))

    check(Function(function), (normal(2, 3, 5, 7), at))


def test_torchvision_moves_windows_and_pools_regions() -> None:
    ops = pytest.importorskip("torchvision.ops")
    rois = torch.tensor([[0, 1.2, 0.3, 5.5, 4.0], [1, 0.0, 0.0, 0.4, 0.2], [1, 2.0, 1.0, 9.0, 6.0]])

    def function(x, offset, mask, weight):
        moved = ops.deform_conv2d(x, offset, weight, None, (2, 1), 1, 1, mask.sigmoid())
        plain = ops.deform_conv2d(x, offset[:, :18], weight, torch.ones(6), (2, 1), 1)
        pooled = [ops.roi_align(x, rois, (3, 2), 0.8, ratio, aligned) for ratio, aligned in ((2, True), (-1, False))]
        return moved, plain, *pooled

    check(Function(function), (normal(2, 4, 8, 9), 2 * normal(2, 36, 4, 9), normal(2, 18, 4, 9), normal(6, 2, 3, 3)))


def test_all_unsupported_operators_are_listed() -> None:
    def function(x):
        return torch.linalg.ldl_factor(x)[0] + torch.linalg.eigvals(x).real

    with pytest.raises(UnsupportedModel, match=r"aten\.linalg_eig\w*\.default \(1: .*aten\.linalg_ldl_factor"):
        import_module(Function(function).eval(), (normal(4, 4),))


def test_one_row_of_an_open_batch_is_broadcast() -> None:
    """x[:1] has min(1, batch) rows, and the least batch makes it one."""

    def function(x):
        return x + x[:1], torch.where(x[-1:] > 0, x, -x), x[:1].expand(x.shape[0], 5) * 2, torch.maximum(x[:1], x)

    x = normal(6, 5)
    check(Function(function), (x,), others=[(normal(9, 5),), (normal(1, 5),)], dynamic_shapes=(({0: DYNAMIC},),))


def test_choices_between_products_in_bfloat16() -> None:
    def function(x, mask):
        x = x.bfloat16()
        chosen = torch.where(mask, x, x * 2)
        return chosen.float(), (torch.where(x > 0, chosen * 4, -x) * 2).float(), chosen.cumsum(1).float()

    x = (normal(5, 8) * 8).round()  # sums that bfloat16 holds
    check(Function(function), (x, normal(5, 8) > 0))


def test_means_of_bags_in_bfloat16() -> None:
    def function(x, i):
        return F.embedding_bag(i, x.bfloat16(), mode="mean").float()

    check(Function(function), ((normal(9, 4) * 8).round(), torch.tensor([[1, 8], [0, 8], [3, 3], [2, 7]])))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x[x > 0], torch.nonzero(x.clamp(min=0) / (x - x[:1])), torch.masked_select(x, x[:1] > 0)),  # NaN
        lambda x: (x[x[:, 0] > 0] @ x[:5, :5], x[:, x[0] > 0].sum(1), torch.where(x > 0)[1]),
        lambda x: torch.cat([x[x > 0], x[x > 0].cumsum(0)])[:, None] * x[0],
        lambda x: (x[x[:, 0] > 0, 1], x[x[:, 0] > 0, :, None][:, 1:], x[:, None][x[:, 0] > 0, :, torch.tensor([2])]),
        lambda x: (
            *torch.unique(x.round(), return_inverse=True, return_counts=True),
            *torch.unique_consecutive((x > 0).float(), return_inverse=True, return_counts=True),
        ),
        lambda x: (torch.bincount(x[0].abs().int(), minlength=2), torch.bincount(x[:, 0].abs().long(), x[:, 1])),
    ],
    ids=["elements", "rows and columns", "joined", "beside other indices", "unique", "counted"],
)
@pytest.mark.sampled(2)
def test_sizes_that_values_decide_are_found_when_the_model_runs(function) -> None:
    x = normal(6, 5)
    check(
        Function(function), (x,), others=[(normal(9, 5),), (-x.abs(),), (x.abs(),)], dynamic_shapes=(({0: DYNAMIC},),)
    )


def put(x, at, values):
    x = x.clone()
    x[at] = values
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (put(x, (x > 0,), x[x > 0].cumsum(0)), put(x, (x > 0,), torch.tensor(3.0))),
        lambda x: (put(x, (x[:, 0] > 0,), x[x[:, 0] > 0] * 2), put(x, (slice(None), x[0] > 0), x[:, x[0] > 0] * 2)),
        lambda x: (put(x, (x[:, 0] > 0,), x[1]), x.index_put((x[:, 0] > 0,), x[x[:, 0] > 0], accumulate=True)),
        lambda x: (x.masked_scatter(x > 0, x.flatten() * 2), x.masked_scatter(x[0] > 0, x.flatten() * 2)),
    ],
    ids=["elements", "rows and columns", "one row for all", "in order"],
)
@pytest.mark.sampled(2)
def test_values_are_written_where_a_mask_is_true(function) -> None:
    some = [(normal(9, 5),), (-normal(4, 5).abs(),), (normal(8, 5).abs(),)]
    check(Function(function), (normal(6, 5),), others=some, dynamic_shapes=(({0: DYNAMIC},),))


def test_a_number_in_a_tensor_is_a_size() -> None:
    def function(x, n):
        length = n.max().item()
        torch._check(length >= 0)
        torch._check(length <= 5)
        return x[:length] * 2, torch.arange(length).sum() + x

    x = normal(6, 5)
    several = [torch.tensor(numbers, dtype=torch.int32) for numbers in ([3, 1], [0, 0], [5, 5])]
    model = check(Function(function), (x, several[0]), others=[(x, n) for n in several[1:]])
    program = compile_in_process(model, threads=1)
    with pytest.raises(InputError, match="a number below 0"):
        program(x.numpy(), np.array([-3, -1], np.int32))


def test_numbers_below_zero_are_not_counted() -> None:
    """Where a result of `minlength` elements is meant, larger numbers are refused, too."""

    def function(i, x):
        return torch.bincount(i, minlength=4) * x

    program = compile_in_process(check(Function(function), (torch.tensor([2, 0, 2]), normal(4))), threads=1)
    for wrong, reason in (([-1, 0, 0], "a number below 0"), ([4, 0, 0], "found 5 where the model needs 4")):
        with pytest.raises(InputError, match=reason):
            program(np.array(wrong), normal(4).numpy())


def test_what_values_decide_otherwise_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="a boolean mask beside other indices"):
        import_module(Function(lambda x: put(x, (x[:, 0] > 0, torch.tensor([1])), x[0, 0])).eval(), (normal(4, 3),))
    with pytest.raises(UnsupportedModel):  # a float
        import_module(Function(lambda x: x.new_zeros(int(x.sum()))).eval(), (normal(4),))


@pytest.fixture
def suppression():
    """torchvision.ops.nms, or, where torchvision is not installed, an operator of its name with a loop for a body."""
    try:
        from torchvision.ops import nms
    except ImportError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

        def chosen(boxes, scores, share):
            kept: list[int] = []
            area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
            for i in torch.argsort(scores, descending=True, stable=True).tolist():
                ends = torch.minimum(boxes[kept, 2:], boxes[i, 2:]) - torch.maximum(boxes[kept, :2], boxes[i, :2])
                common = ends.clamp(min=0).prod(1)
                if not (common / (area[kept] + area[i] - common) > share).any():
                    kept.append(i)
            return torch.tensor(kept, dtype=torch.int64)

        def shape(boxes, scores, share):
            return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)

        library.impl("nms", chosen, "CPU")
        torch.library.register_fake("torchvision::nms", shape, lib=library)
        yield torch.ops.torchvision.nms
        library._destroy()
    else:
        yield nms


def test_boxes_are_suppressed_as_by_torchvision(suppression) -> None:
    """Also boxes of equal scores, boxes that end before they begin, and 0.1, which float32 rounds up."""

    def function(boxes, scores):
        there = scores > 0.2
        boxes, scores = boxes[there], scores[there]
        return boxes[suppression(boxes, scores, 0.3)], scores[suppression(boxes, scores, 0.1)]

    def inputs(n: int, levels: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(n)
        boxes = torch.randint(0, 10, (n, 4), generator=random).float()
        scores = torch.randint(0, levels, (n,), generator=random) / levels
        return boxes, scores

    check(
        Function(function),
        inputs(60, 1000),
        others=[inputs(40, 4), inputs(7, 9)],
        dynamic_shapes=(({0: torch.export.Dim("n", min=1, max=200)},) * 2,),
    )


class Counter(torch.nn.Module):
    """How often it was called, a running mean of what it saw, and a view of a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("table", torch.arange(8.0).reshape(2, 4))

    def forward(self, x):
        self.count.add_(1)
        self.mean = self.mean * 0.5 + x.mean(0) * 0.5
        self.table[1:] += x[0]
        return x + self.mean, self.table.sum(0) * self.count


@pytest.mark.parametrize("saved", [False, True])
def test_buffers_that_a_module_changes_are_state(tmp_path, saved: bool) -> None:
    module = Counter().eval()
    if saved:
        torch.export.save(torch.export.export(module, (normal(3, 4),)), str(tmp_path / "m.pt2"))
        model = import_unrestricted(tmp_path / "m.pt2", {})
    else:
        model = import_module(module, (normal(3, 4),))
    assert model.outputs == ("output_0", "output_1", "state_count", "state_mean", "state_table")
    defaults = {spec.name: spec.default for spec in model.inputs}
    assert defaults == {"x": None, "state_count": "zeros", "state_mean": "zeros", "state_table": None}
    program = compile_in_process(model, threads=1, level=2)
    state = {"state_count": np.zeros(1, np.int64), "state_mean": np.zeros(4, np.float32)}
    state["state_table"] = np.arange(8, dtype=np.float32).reshape(2, 4)
    original = Counter()
    for _ in range(3):
        x = normal(3, 4)
        found, own = program(x=x.numpy(), **state), model.engine({"x": x.numpy(), **state})
        for name, want in zip(model.outputs, original(x)):
            np.testing.assert_allclose(found[name], want.numpy(), rtol=1e-5, atol=1e-6)
        for name in model.outputs:
            np.testing.assert_allclose(own[name], found[name], rtol=1e-5, atol=1e-6)
        state = {name: np.array(found[name]) for name in state}


def test_changed_inputs_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="user_input_mutation of 'args_0': return the changed value"):
        import_module(Function(lambda x: x.add_(1) * 2).eval(), (normal(4),))


def test_outputs_of_one_name_are_told_apart_and_numbers_are_reported() -> None:
    model = check(Function(lambda x: {1: x + 1, "1": x * 2, "n": 2.5, "none": None, "1_1": x.relu()}), (X,))
    assert model.outputs == ("output_1", "output_1_2", "output_1_1")
    assert model.report["left_out_outputs"] == {"n": "2.5", "none": "None"}


def test_unsigned_numbers_are_negated_as_they_wrap_around() -> None:
    check(Function(lambda x: (-x, -x.int())), (torch.tensor([0, 1, 200, 255], dtype=torch.uint8),))


def test_distributions_of_computed_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checks would ask for values; behind the export they check again."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # Dynamo ends them for good

    def function(x):
        return torch.distributions.Normal(x, x.exp()).log_prob(x * 2)

    model = import_module(Function(function).eval(), (normal(3, 4),))
    with torch.no_grad():
        wanted = function(normal(3, 4)).numpy()
    (found,) = compile_in_process(model, threads=1)(normal(3, 4).numpy()).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    with pytest.raises(ValueError, match="constraint"):
        function(torch.full((2,), torch.nan))


def test_sizes_that_a_module_has_not_are_explained() -> None:
    with pytest.raises(UnsupportedModel, match=r"specialized it to be a constant \(4\).*it suggests n = 4\)"):
        sizes = (({0: torch.export.Dim("n", max=9)},),)
        import_module(Function(lambda x: x + torch.ones(4)).eval(), (normal(4),), dynamic_shapes=sizes)


def test_what_torch_cannot_decompose_is_refused() -> None:
    def function(a, b):
        b.copy_(a[:, 0])
        a.t_()
        return a, b

    with pytest.raises(UnsupportedModel, match="expected a program that torch can decompose, found AssertionError"):
        import_module(Function(function).eval(), (normal(3, 3), normal(3)))


def test_training_mode_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"call \.eval\(\)"):
        import_module(torch.nn.Dropout(0.5), (normal(4),))


def test_programs_in_core_operators() -> None:
    """As `run_decompositions` leaves them, in files for other runtimes: norms keep their statistics there."""
    layers = (torch.nn.Conv1d(4, 6, 3), torch.nn.GroupNorm(2, 6), torch.nn.GELU(), torch.nn.LayerNorm(8))
    net, x = torch.nn.Sequential(*layers).eval(), normal(2, 4, 10)
    model = import_program(torch.export.export(net, (x,)).run_decompositions(), name="core")
    assert operators(model)["layer_norm"] == 1
    found = list(compile_in_process(model, threads=1)(x.numpy()).values())[0]
    np.testing.assert_allclose(found, net(x).detach().numpy(), atol=1e-5)


def test_slices_rolls_and_writes_compare_with_the_size() -> None:
    """Starts beyond the axis, an axis rolled twice, indices that broadcast, axes in front of an index, masks."""

    def function(x):
        y, z, w, s = x.clone(), x.clone(), x.clone(), x.clone()
        y[:, -16:] = 0
        s[:, 1:9:3] = 0
        rows, columns = torch.tensor([[0], [2]]), torch.tensor([[1, 3, 4]])
        z[rows, columns] = torch.tensor([1.0, 2.0, 3.0])
        w[:, torch.tensor([0, 2])] = 5.0
        mask = x.masked_fill(x > 0, 1.0)
        mask[x < -1] = 7.0
        rolled = torch.roll(x, (1, 2), (1, 1))
        return y, z, w, s, mask, rolled, x[:, 1:9:3], torch.scatter(x, 1, torch.tensor([[0, 3]]), x + 1)

    check(Function(function), (normal(4, 10),))


def test_rolls_by_open_sizes_and_the_first_of_a_row_of_rows() -> None:
    def function(x):
        rows, columns = x.shape
        first = x.flatten()[:1], x.T.flatten()[:1]
        return (
            torch.roll(x, columns // 2, 1),
            torch.roll(x, (-rows, columns + 1), (0, 1)),
            torch.fft.ifftshift(x),
            *first,
        )

    shapes = (({0: DYNAMIC, 1: DYNAMIC},),)
    check(Function(function), (normal(4, 10),), others=[(normal(3, 7),)], dynamic_shapes=shapes)


def test_a_start_counted_from_the_end_by_a_dynamic_size() -> None:
    def function(x, y):
        return x[:, -y.shape[0] :], x[:, -y.shape[0] :: 2]

    shapes = (({1: DYNAMIC(min=8, max=32)}, {0: DYNAMIC(min=2, max=6)}),)
    check(Function(function), (normal(2, 9), normal(3)), others=[(normal(2, 12), normal(5))], dynamic_shapes=shapes)


def test_padding_to_a_multiple_of_an_open_size() -> None:
    """As attention in blocks has it; the amount may be nothing."""

    def function(x):
        n = x.shape[1]
        return F.pad(x, (0, 0, 0, -n % 4)), F.pad(x, (1, n - 2), value=2.0)

    shapes = (({1: DYNAMIC(min=2, max=64)},),)
    check(Function(function), (normal(2, 6, 3),), others=[(normal(2, n, 3),) for n in (4, 9)], dynamic_shapes=shapes)


@pytest.mark.slow
def test_the_first_rows_of_a_projection() -> None:
    """Read at the same places as those of a whole tensor, and yet of another shape: behind a pad, as attention in
    blocks has it, too."""

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x, count):
            rows = F.pad(torch.relu(self.up(x)), (0, 0, 0, -x.shape[1] % 4))
            return self.down(rows[:, : count.shape[0]]), self.down(self.up(x)[:, : count.shape[0]].relu())

    shapes = {"x": {0: DYNAMIC(min=1, max=4), 1: DYNAMIC(min=6, max=32)}, "count": {0: DYNAMIC(min=2, max=6)}}
    inputs = (normal(2, 9, 8), normal(5))
    check(First(), inputs, others=[(normal(3, 11, 8), normal(4)), (normal(1, 8, 8), normal(6))], dynamic_shapes=shapes)


@pytest.mark.slow
def test_the_largest_of_an_open_number() -> None:
    """As many as there are tokens, as sparse attention asks of a short text; or half of them."""

    def function(x):
        half, places = x.topk(x.shape[1] // 2, dim=1)
        least, order = x.topk(x.shape[1], dim=1, largest=False)
        return half, places, least, order

    shapes = (({1: DYNAMIC(min=2, max=40)},),)
    check(Function(function), (normal(3, 8, 2),), others=[(normal(3, n, 2),) for n in (2, 9)], dynamic_shapes=shapes)


@pytest.mark.parametrize("added", [lambda n: -n % 4, lambda n: (4 - n % 4) % 4], ids=["less", "rest"])
def test_blocks_of_a_size_that_was_filled_up(added) -> None:
    """All of the filled size through the number of blocks is the size of a block, of which rows are taken."""

    def function(x):
        filled = F.pad(x, (0, 0, 0, added(x.shape[0])))
        blocks = filled.shape[0] // 4
        rows = filled.reshape(blocks, filled.shape[0] // blocks, 3)
        return rows[:, :1] * rows, rows.sum(1)

    others = [(normal(n, 3),) for n in (8, 9, 16)]
    check(Function(function), (normal(6, 3),), others=others, dynamic_shapes=(({0: DYNAMIC},),))


def test_rows_of_indices_that_an_open_size_bounds() -> None:
    """A kernel that reads a size by itself stays right where its rows become those of a matrix."""

    def function(x):
        places = x.topk(x.shape[2], dim=-1).indices.to(torch.int32)
        return torch.full(x.shape, -1.0).scatter(-1, places.to(torch.int64), x)

    size = DYNAMIC(min=2, max=40)
    check(Function(function), (normal(2, 8, 8),), others=[(normal(2, 3, 3),)], dynamic_shapes=(({1: size, 2: size},),))


def test_counting_down_by_an_open_size() -> None:
    """Distances between positions, as attention over sounds has them."""

    def function(x):
        n = x.shape[1]
        return torch.arange(n - 1, -n, -1)[:, None] * 2, torch.arange(n, 0, -3)

    shapes = (({1: DYNAMIC(min=2, max=64)},),)
    check(Function(function), (normal(3, 8),), others=[(normal(3, n),) for n in (2, 9)], dynamic_shapes=shapes)


@pytest.mark.slow
def test_fractions_of_open_sizes_are_numbers() -> None:
    """Not their whole parts; roots, too."""

    def function(x):
        m, n = x.shape
        return x / (n + 0.5), x * (n / m), x - 1 / n, x * n**-0.5, x + n**0.5 * 0.3

    others = [(normal(m, n),) for m, n in ((2, 3), (7, 5), (3, 16))]
    check(
        Function(function),
        (normal(4, 6),),
        others=others,
        dynamic_shapes=(({0: DYNAMIC(max=64), 1: DYNAMIC(max=64)},),),
    )


@pytest.mark.slow
def test_sizes_that_python_makes_with_floats() -> None:
    """Whole numbers and fractions of few digits are integers divided, and rounded as Python does."""

    def function(x):
        n = x.shape[1]
        scaled = F.interpolate(x[None], scale_factor=0.5)
        return (
            torch.arange(n - 1, -n, -1.0),
            torch.arange(0, n, 0.5),
            x.new_zeros(round(n * 0.75) + math.ceil((n - 2) / 3 + 1)),
            scaled,
        )

    shapes = (({1: DYNAMIC(min=5, max=64)},),)
    others = [(normal(3, n),) for n in (5, 11, 15)]
    check(Function(function), (normal(3, 8),), others=others, dynamic_shapes=shapes)
    with pytest.raises(UnsupportedModel, match="arithmetic on integers, found .* rounded"):
        tenths = Function(lambda x: x.new_zeros(round(x.shape[1] * 0.3)) + x.mean())
        import_module(tenths.eval(), (normal(3, 8),), dynamic_shapes=shapes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_are_brought_to_any_size_without_aliasing(mode: str) -> None:
    """How many neighbours an element is made of is as open as the sizes are: six times as many, or two."""
    function = Function(lambda x, y: F.interpolate(x, size=y.shape[2:], mode=mode, antialias=True))
    shapes = (({2: DYNAMIC(max=200), 3: DYNAMIC(max=200)}, {2: DYNAMIC(max=100), 3: DYNAMIC(max=100)}),)
    sizes = [((147, 33), (3, 11)), ((14, 14), (16, 19)), ((200, 2), (1, 100)), ((3, 5), (3, 5))]
    others = [(normal(1, 3, *given), normal(1, 1, *wanted)) for given, wanted in sizes]
    check(function, (normal(1, 3, 20, 30), normal(1, 1, 7, 9)), others=others, dynamic_shapes=shapes)


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True])
def test_sizes_that_take_another_branch_than_the_export_are_refused(tmp_path, saved: bool) -> None:
    """torch takes it that one size is no larger than the other, which no range says; where that changes nothing but the
    layout (a slice of all there is, an empty one), such sizes are served."""

    def function(x, y):
        n = y.shape[0]
        if x.shape[0] == 6:
            return x, x, x
        return x[:, -n:], x[:, :n:2], x[:, n:]

    shapes = (({0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC}),)
    module, inputs = Function(function), (normal(2, 9), normal(3))
    others = [(normal(3, 5), normal(5)), (normal(1, 2), normal(1)), (normal(2, 40), normal(2))]
    if not saved:
        model = check(module, inputs, others=others, dynamic_shapes=shapes)
    else:
        torch.export.save(torch.export.export(module, inputs, dynamic_shapes=shapes), tmp_path / "net.pt2")
        model = import_model(str(tmp_path / "net.pt2"))
    assert sorted(c.text for c in model.conditions) == ["6 != batch", "batch_2 <= sequence"]
    program = compile_in_process(model, threads=1, level=0)
    for sizes, name in (((1, 4, 9), "batch_2 <= sequence"), ((6, 9, 4), "6 != batch")):
        with pytest.raises(InputError, match=f"expected {name}, as the model was exported for, found batch "):
            program(np.ones(sizes[:2], np.float32), np.ones(sizes[2], np.float32))
    cases = cases_of(model, 0)  # what it is validated with
    assert all(cases[f"case{i}.input.args_1"].size <= cases[f"case{i}.input.args_0"].shape[1] for i in (0, 1))


def test_quantised_exports_are_rounded_as_torch_rounds() -> None:
    """Activations by tensor, weights by channel, restored when they are loaded; grids that leave floats behind."""
    import torch.ao.quantization.fx._decomposed

    q = torch.ops.quantized_decomposed

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.register_buffer("w", torch.randint(-127, 128, (8, 4, 3, 3), dtype=torch.int8, generator=generator))
            self.register_buffer("scales", torch.rand(8, generator=generator) * 0.01 + 0.001)
            self.register_buffer("zeros", torch.arange(8) - 4)
            self.register_buffer("large", torch.randint(-9, 9, (600, 120), dtype=torch.int8, generator=generator))

        def forward(self, x):
            grid = (0.02, 128, 0, 255, torch.uint8)
            x = q.dequantize_per_tensor(q.quantize_per_tensor(x, *grid), *grid)
            w = q.dequantize_per_channel(self.w, self.scales, self.zeros, 0, -128, 127, torch.int8)
            y = F.conv2d(x, w, padding=1)
            left = torch.fake_quantize_per_tensor_affine(y, 0.05, 3, -128, 127)
            columns = torch.fake_quantize_per_channel_affine(y, self.scales * 9, self.zeros.int(), 1, -128, 127)
            large = q.dequantize_per_tensor(self.large, 0.1, 1, -128, 127, torch.int8)
            return (
                F.linear(x.flatten(1), large),
                left,
                columns,
                q.quantize_per_channel(y, self.scales, self.zeros, 1, -128, 127, torch.int8),
            )

    model = check(Net(), (normal(2, 4, 6, 5),))
    assert [(tuple(s.shape), s.dtype) for s in model.params.sources.values()] == [((600, 120), "float32")]


def test_statements_about_values_compute_nothing() -> None:
    """As transformers states that sizes fit each other: nothing but the statement reads what it is about."""

    def stated(x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
        total = (levels[:, 0] * levels[:, 1]).sum()
        torch._check_with(ValueError, (total == x.shape[1]).item(), lambda: "sizes that do not fit")
        return x * 2

    model = check(Function(stated), (normal(2, 6), torch.tensor([[2, 2], [1, 2]])))
    assert not any(name.startswith("relax.sum") for name in count_calls(model.mod["main"]))


@pytest.mark.parametrize("cleared", [False, True])
def test_rows_that_see_no_key_are_as_softmax_leaves_them(cleared: bool) -> None:
    """DeBERTa hides what is padded as queries, too: such a row is the mean of all values, or 0 where it is cleared."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = mask[:, None, :, None] * mask[:, None, None, :] != 0
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~seen, torch.finfo(torch.float32).min)
        weights = scores.softmax(-1)
        return (weights.masked_fill(~seen, 0.0) if cleared else weights) @ v

    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]])
    examples = (*(normal(2, 3, 5, 16) + i for i in range(3)), mask)
    mod = check(Function(attention), examples).mod
    for one in sorted(OPERATORS["attention"].lifts(), key=lambda lift: -lift.benefit):
        mod, _ = apply_lift(mod, one, [])
    assert count_calls(mod["main"])["halo.attention"] == 1


@pytest.mark.parametrize(
    ("shape", "weight", "options"),
    [
        ((1, 6, 9), (6, 4, 16), {"stride": 8, "padding": 4}),
        ((1, 8, 5, 7), (8, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((2, 8, 5, 7), (8, 3, 4, 4), {"stride": 2, "padding": 1, "groups": 2}),
        ((1, 4, 6, 5), (4, 2, 3, 2), {"stride": (2, 3), "dilation": (3, 1), "groups": 2}),
        ((1, 4, 6, 5), (4, 2, 1, 1), {"stride": 2}),
    ],
)
@pytest.mark.sampled(2)
def test_transposed_convolutions_of_computed_weights_are_convolutions(shape, weight, options):
    """As layers whose weights a style scales: by phases, as with weights that are known, no loop over all of them."""
    function = getattr(torch.nn.functional, f"conv_transpose{len(shape) - 2}d")
    module = Function(lambda x, w, s: function(x, w * s, **options))
    examples = (normal(*shape), normal(*weight), normal(1, weight[1], *[1] * (len(shape) - 2)))
    assert operators(check(module, examples))["convolution"] >= 1
