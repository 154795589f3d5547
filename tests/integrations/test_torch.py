"""torch.compile with this backend, and artifacts as modules."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import halo_tvm
from halo_tvm import explore
from halo_tvm.errors import UsageError
from halo_tvm.integrations.torch import EagerFallback, HaloModule, compile_backend, report
from halo_tvm.integrations.torch.program import readable
from halo_tvm.integrations.torch.weights import WatchedWeights

THREADS = {"threads": 1}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()


def compiled(function: object, **options: object) -> object:
    return torch.compile(function, backend=compile_backend, options=THREADS, **options)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", EagerFallback)  # a test that falls back expects it
        yield


def test_a_module_with_parameters_runs_compiled_and_its_gradients_come_from_torch() -> None:
    """As the README writes it: no `no_grad` anywhere."""
    module = network()
    fast = compiled(module)
    x = torch.randn(3, 8, requires_grad=True)
    y = fast(x)
    torch.testing.assert_close(y, module(x))
    assert y.requires_grad and report()[-1].compiled == 1 and report()[-1].eager_calls == 0
    with pytest.warns(EagerFallback, match="backward was asked for: the forward ran compiled"):
        y.square().sum().backward()
    found = [x.grad, *(p.grad for p in module.parameters())]
    expected = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    fast(x).sum().backward()  # said once


def test_gradients_are_those_of_the_random_numbers_that_were_drawn() -> None:
    module, x = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5)).train(), torch.ones(1, 4)
    fast = compiled(module)
    with pytest.warns(EagerFallback, match="a graph that draws random numbers, of which gradients are asked for"):
        y = fast(x)
    y.sum().backward()
    torch.testing.assert_close(module[0].bias.grad, (y[0] != 0) * 2.0)
    with torch.no_grad():
        fast(x)
    assert [(g.calls, g.eager_calls) for g in report()[-2:]] == [(1, 1), (1, 0)]


@pytest.mark.slow
def test_numbers_are_told_apart_by_their_sign_and_nan_is_one_number() -> None:
    @torch.compile(backend=compile_backend, options=THREADS, dynamic=True)
    def fast(x: torch.Tensor, s: float) -> torch.Tensor:
        return x / s

    x = torch.ones(2)
    for number in (0.0, -0.0, float("nan"), -float("nan"), float("nan"), 0.0, -0.0):
        torch.testing.assert_close(fast(x, number), x / number, equal_nan=True)
    assert report()[-1].compiled == 1 and report()[-1].calls == 3  # torch makes a graph for NaN


def test_weights_that_are_computed_of_others_follow_them() -> None:
    module, x = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 16)).eval(), torch.randn(3, 8)
    fast = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        for parameter in module.parameters():
            parameter.mul_(1.5).add_(0.25)
        torch.testing.assert_close(fast(x), module(x))


def test_changed_weights_are_read_again_and_others_compiled_again() -> None:
    module, x = network(), torch.randn(3, 8)
    fast = compiled(module)

    def check(programs: int, refreshed: int) -> None:
        torch.testing.assert_close(fast(x), module(x))
        assert (report()[-1].compiled, report()[-1].refreshed) == (programs, refreshed)

    with torch.no_grad():
        check(1, 0)
        module[0].weight.mul_(3)
        check(1, 1)
        module[0].weight.data.mul_(0.5)  # torch does not count this one
        check(1, 2)
        module[2].bias.detach().numpy()[:] = 7
        check(1, 3)
        module[0].weight.data[3] = 0  # pruning
        check(1, 4)
        module[0].bias.data = torch.randn(16)
        check(2, 4)
    torch.optim.SGD(module.parameters(), 0.1).step()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(module.parameters(), 0.1).step()
    with torch.no_grad():
        check(2, 5)


def test_of_large_weights_a_few_words_are_compared() -> None:
    weights = [torch.zeros(1 << 17), torch.zeros(1)]
    watched = WatchedWeights([0, 1], weights)
    for weight, element, seen in ((0, 9, False), (0, -1, True), (1, 0, True)):
        weights[weight].data[element] = 1
        assert watched.changed() == seen
        watched.seen()


@pytest.mark.slow
def test_one_program_serves_open_sizes_and_numbers_are_part_of_it() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor, parts: int) -> tuple[object, ...]:
            y = self.inner(x).sum(1)
            return y.reshape(x.shape[0] * parts, -1), x.shape[1] * 2, None

    module = Net()
    fast = compiled(module, dynamic=True)
    before = len(report())
    for batch, length, parts in ((2, 3, 2), (5, 7, 2), (64, 4, 2), (2000, 2, 2), (5, 3, 4)):
        x = torch.randn(batch, length, 8)
        ours, theirs = fast(x, parts), module(x, parts)
        torch.testing.assert_close(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]
    (graph,) = report()[before:]
    assert graph.compiled == 2 and graph.eager_calls == 0, graph  # one for each number of parts


@pytest.mark.slow
def test_automatic_open_sizes_and_weights_of_inference_mode() -> None:
    with torch.inference_mode():
        module = network()
        fast, before = compiled(module), len(report())
        for batch in (3, 4, 5, 12):
            x = torch.randn(batch, 8)
            torch.testing.assert_close(fast(x), module(x))
    assert [graph.compiled for graph in report()[before:]] == [1, 1]  # three rows, then any number


def test_writes_in_place_are_found_in_inference_mode() -> None:
    """Tensors that are made there count no versions."""
    with torch.inference_mode():
        module, x = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU6(inplace=True)), torch.randn(3, 6)
        fast, before = compiled(module), len(report())
        torch.testing.assert_close(fast(x), module(x))
        clipped, given = compiled(lambda t: t.clamp_(min=0).sum()), x.clone()
        torch.testing.assert_close(clipped(given), x.clamp(min=0).sum())
        assert torch.equal(given, x.clamp(min=0)), "what the graph writes is written"
    assert all(graph.eager_calls == 0 for graph in report()[before : before + 1])


def test_recurrent_layers_are_traced() -> None:
    """Torch leaves them out unless it is told otherwise, with no graph that could say so."""

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = torch.nn.LSTM(6, 20, bidirectional=True), torch.nn.Linear(40, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x)[0])

    net, x = Tagger().eval(), torch.randn(5, 2, 6)
    with torch.no_grad():
        assert torch.allclose(compiled(net, fullgraph=True)(x), net(x), atol=1e-6)
    assert (report()[-1].compiled, report()[-1].eager_calls) == (1, 0)


@pytest.mark.slow
def test_fast_paths_of_transformer_modules_are_compiled() -> None:
    """What these modules call in inference is one operator; with a mask torch runs it, and says so."""
    torch.manual_seed(0)
    layers = [
        torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=first) for first in (True, False)
    ]
    module, x = torch.nn.Sequential(*layers).eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(x), module(x), rtol=1e-4, atol=1e-5)
        assert report()[-1].compiled == 1 and report()[-1].operators == 2
        hidden = torch.zeros(5, 5, dtype=torch.bool).fill_diagonal_(True)
        with pytest.warns(EagerFallback, match="_transformer_encoder_layer_fwd"):
            masked = compiled(module[0])(x, src_mask=hidden)
        torch.testing.assert_close(masked, module[0](x, src_mask=hidden))


def test_outputs_share_memory_where_those_of_torch_do() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t(), x.clone(), x + 0, x.relu(), x.relu().clone(), weight.clone(), weight[1:]

    x = torch.randn(4, 4).abs()
    with torch.no_grad():
        ours, theirs = compiled(function)(x), function(x)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)

    def shared(outputs: tuple[torch.Tensor, ...]) -> list[tuple[int, int]]:
        memory = [t.untyped_storage().data_ptr() for t in (x, weight, *outputs)]
        return [(i, j) for i in range(len(memory)) for j in range(i) if memory[i] == memory[j]]

    assert shared(ours) == shared(theirs) == [(2, 0), (8, 1)]
    kept = x.clone()
    for tensor in ours[1:6]:
        tensor.fill_(9)
    assert torch.equal(x, kept) and not (weight == 9).any()
    with torch.no_grad():  # nor did the program's own weights change
        torch.testing.assert_close(compiled(function)(x)[5], weight)


@pytest.mark.slow
def test_outputs_share_memory_with_each_other_where_those_of_torch_do() -> None:
    def shifted(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        row, wide = y[0], y.view(2, -1)
        torch._dynamo.graph_break()
        y.add_(1)
        return row, wide + 0, y

    def split(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * 3).add_(1)
        first, second = y.chunk(2, -1)
        return first.unsqueeze(0), second, y.t(), x.shape[0], x + 1

    def filled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.zeros(4, 4)
        row = y[0]
        y[:] = x
        return row, x + 1, y.mul_(x)

    def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.t() * 2
        return y, y[0]

    for dynamic in (False, True):
        for rows in (4, 6):
            x = torch.randn(rows, 4)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EagerFallback)  # what is behind the break writes to shared memory
                torch.testing.assert_close(compiled(shifted, dynamic=dynamic)(x), shifted(x))
            ours, theirs = compiled(split, dynamic=dynamic)(x), split(x)
            torch.testing.assert_close(ours, theirs)
            assert report()[-1].compiled == 1 and report()[-1].eager_calls == 0
            ours[2].zero_()
            assert not ours[0].any() and not ours[1].any() and ours[4].any()
    for function in (split, filled):
        x = torch.randn(4, 4, requires_grad=True)
        kept = x.detach().clone().requires_grad_()
        with pytest.warns(EagerFallback, match="backward was asked for"):
            outputs = compiled(function)(x)
            (outputs[0].sum() * 3 + outputs[2].square().sum()).backward()
        expected = function(kept)
        (expected[0].sum() * 3 + expected[2].square().sum()).backward()
        torch.testing.assert_close(x.grad, kept.grad)
    x = torch.randn(4, 4)
    with pytest.warns(EagerFallback, match="outputs that share memory with each other in a layout"):
        torch.testing.assert_close(compiled(turned)(x), turned(x))


def test_arguments_of_any_layout_are_read_right() -> None:
    memory = torch.arange(1.0, 66.0)
    unaligned, transposed = memory[1:], memory[1:].reshape(8, 8).t()
    for tensor in (unaligned, transposed):
        given = readable(tensor)
        assert given.is_contiguous() and torch.equal(given, tensor)
        assert (given.data_ptr() == tensor.data_ptr()) == tensor.is_contiguous()
        torch.testing.assert_close(compiled(torch.exp)(tensor), tensor.exp())


def test_functions_of_rows_are_compiled_and_gradients_of_functions_are_left_to_torch() -> None:
    """torch.export fails inside of grad: the transform is left again, or torch could not run the graph either."""

    def mapped(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: row @ row.softmax(0) + torch.roll(row, 1, 0))(x)

    def shared(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def of_row(row: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = row * 2
            return y[1:], y

        return torch.func.vmap(of_row)(x)

    def derived(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda y: y.sin().sum())(x[0])

    x = torch.randn(4, 5)
    torch.testing.assert_close(compiled(mapped)(x), mapped(x))
    assert report()[-1].compiled == 1
    for function, reason in ((derived, "Cannot access data pointer"), (shared, "outputs that share memory")):
        with pytest.warns(EagerFallback, match=reason):
            torch.testing.assert_close(compiled(function)(x), function(x))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


def test_what_torch_runs_is_said_once_with_the_operator() -> None:
    def function(x: torch.Tensor) -> tuple[object, ...]:
        return torch.linalg.ldl_factor(x)[0], None

    x, fast = torch.randn(4, 4), compiled(function)
    with pytest.warns(EagerFallback, match="runs in torch, not in halo_tvm: .*linalg_ldl_factor") as said:
        results = [fast(x), fast(x)]
    assert len([w for w in said if w.category is EagerFallback]) == 1
    for result in results:
        torch.testing.assert_close(result[0], function(x)[0])
    assert report()[-1].eager_calls == 2 and "linalg_ldl_factor" in str(report()[-1]) and results[0][1] is None


def test_a_graph_is_compiled_for_dtypes_and_devices_of_its_arguments() -> None:
    """Called without torch.compile's own guards."""
    graph = torch.fx.symbolic_trace(lambda x: (x * 2 + 1,))
    for node in graph.graph.nodes:
        if node.op != "output":
            node.meta["example_value"] = torch.empty(3)
    run = compile_backend(graph, [], options=THREADS)
    for x in (torch.randn(3), torch.arange(3), torch.randn(3, dtype=torch.float64)):
        (y,) = run(x)
        assert y.dtype == x.dtype
        torch.testing.assert_close(y, x * 2 + 1)
    with pytest.warns(EagerFallback, match="tensors on meta: only CPU graphs"):
        assert run(torch.empty(3, device="meta"))[0].device.type == "meta"
    with pytest.warns(EagerFallback, match="a graph without inputs"):
        assert run(torch.empty(0))[0].shape == (0,)
    with pytest.raises(UsageError, match="threads, level, precision, log, records, found 'speed'"):
        compile_backend(graph, [], options={"speed": 11})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 9999}, "threads: expected an integer from 1 to"),
        ({"threads": "2"}, "threads must be a whole number, but is '2'"),
        ({"precision": "foo"}, "unknown precision 'foo'"),
        ({"level": 9}, "unknown opt level '9'"),
        ({"records": "no"}, "records must be true or false, but is 'no'"),
        ({"log": "nodir"}, "a tuning log was expected at 'nodir', but there is none"),
    ],
)
def test_values_of_options_are_refused_at_once(options: dict[str, object], message: str) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x * 2 + 1,))
    with pytest.raises(UsageError, match=message):
        compile_backend(graph, [], options=options)


def test_writes_to_views_that_nothing_else_reads_are_kept() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1
        y[:, 0].mul_(2)
        torch.nn.functional.relu(y[1], inplace=True)
        y.t()[2].add_(1)
        return y, x[1:]

    x = torch.randn(3, 4)
    for ours, theirs in zip(compiled(function)(x), function(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert (report()[-1].compiled, report()[-1].eager_calls) == (1, 0)


def test_state_in_buffers_and_arguments_is_written() -> None:
    """A cache and a counter of the module, and an argument that is changed in place."""

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(6, 4))
            self.register_buffer("position", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            self.cache.index_copy_(0, self.position + torch.arange(x.shape[0]), x)
            self.position += x.shape[0]
            total[1:] += x.sum()
            return self.cache.cumsum(0)

    ours, theirs = Decoder(), Decoder()
    totals, fast = (torch.zeros(3), torch.zeros(3)), compiled(ours)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 4)
            torch.testing.assert_close(fast(x, totals[0]), theirs(x, totals[1]))
            torch.testing.assert_close((*ours.buffers(), totals[0]), (*theirs.buffers(), totals[1]))
        assert (report()[-1].compiled, report()[-1].eager_calls, report()[-1].refreshed) == (1, 0, 0)


def test_what_is_written_and_returned_is_the_argument_and_what_shares_memory_runs_in_torch() -> None:
    def add_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x[:1] * y

    x, y = torch.arange(3.0), torch.arange(3.0)
    fast = compiled(add_to)
    with pytest.warns(EagerFallback, match="writes to an argument, .* which shares memory with another"):
        shared = fast(x, x[1:2])
    torch.testing.assert_close(shared, add_to(y, y[1:2]))
    returned = compiled(lambda x: (x.mul_(2), x.sum()))(x)
    torch.testing.assert_close(returned, (y.mul_(2), y.sum()))
    torch.testing.assert_close(x, y)
    assert returned[0].data_ptr() == x.data_ptr() and report()[-1].eager_calls == 0


def test_regions_of_autocast_are_compiled_in_their_type() -> None:
    """Norms, activations and sums inside them, too: bfloat16 rows between float32 kernels are fused."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.up, self.norm, self.down = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.down(torch.nn.functional.gelu(self.norm(self.up(x))))
            return y, y.float().softmax(-1)

    net, x = Net().eval(), torch.randn(4, 32)
    with torch.no_grad():
        ours, theirs = compiled(net)(x), net(x)
    assert ours[0].dtype is torch.bfloat16 and report()[-1].eager_calls == 0
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_tensors_without_elements_are_part_of_a_program() -> None:
    """Weights that a configuration leaves empty, a cache of no tokens yet, results of none."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.registers = torch.nn.Parameter(torch.zeros(1, 0, 8))

        def forward(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            joined = torch.cat([self.registers.expand(x.shape[0], -1, -1), past, x], 1)
            return joined * 2, joined[:, :0] + 1

    module = Net()
    fast, before = compiled(module, dynamic=True), len(report())
    with torch.no_grad():
        for batch, past in ((4, 0), (5, 0), (6, 2), (7, 4)):
            given = torch.randn(batch, 3, 8), torch.randn(batch, past, 8)
            torch.testing.assert_close(fast(*given), module(*given))
    assert [graph.compiled for graph in report()[before:]] == [1, 1]  # any batch without, any with past tokens


def test_one_program_serves_a_size_that_is_computed_of_another() -> None:
    class Steps(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.relu(x[1:]) + y * x[:-1]

    fast, before = compiled(Steps(), dynamic=True), len(report())
    for n in (5, 6, 9):
        given = torch.randn(n, 3), torch.randn(n - 1, 3)
        torch.testing.assert_close(fast(*given), Steps()(*given))
    assert sum(graph.compiled for graph in report()[before:]) == 1, report()[before:]
    with pytest.raises(RuntimeError):  # as torch says it
        fast(torch.randn(6, 3), torch.randn(4, 3))


def test_records_of_tune_are_used(tmp_path: Path) -> None:
    """What was committed for a function of the module is what torch.compile schedules it by."""
    module, x = torch.nn.Linear(64, 96).eval(), torch.randn(16, 64)
    (task,) = explore.tasks(halo_tvm.import_torch(module, (x,)), threads=1)
    decision = next(d for d in task.space if d != task.default)
    times = tuple((200.0,) * 12 for _ in task.sizes), tuple((100.0,) * 12 for _ in task.sizes)
    measured = explore.Comparison(task, task.default, decision, *times, 2.0, 2.0, 2.0)
    explore.commit(task, decision, log=tmp_path, comparison=measured)
    for options, tuned in ((THREADS, 0), ({**THREADS, "log": str(tmp_path)}, 1)):
        torch._dynamo.reset()
        fast = torch.compile(module, backend="halo_tvm", options=options)
        torch.testing.assert_close(fast(x), module(x))
        assert (report()[-1].tuned, report()[-1].functions) == (tuned, 1)


def test_an_imported_module_becomes_an_artifact_and_a_module(tmp_path: Path) -> None:
    module, x = network(), torch.randn(3, 8)
    rows = torch.export.Dim.DYNAMIC(min=1, max=8)
    model = halo_tvm.import_torch(module, (x,), dynamic_shapes=({0: rows},), name="net")
    config = halo_tvm.CompileConfig(model="net", output=str(tmp_path / "net.halo"), records=False)
    result = halo_tvm.compile_model(config, model)
    assert result.validation.startswith("passed")
    loaded = HaloModule(result.path, threads=1)
    with torch.no_grad():
        for rows in (x, torch.randn(5, 8)):
            torch.testing.assert_close(loaded(rows), module(rows), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="requires gradients"):
        loaded(x.requires_grad_())
    assert np.asarray(loaded(x.detach())).shape == (3, 16)
