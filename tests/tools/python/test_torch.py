"""Modules of torch: exported, trained, and loaded again."""

import copy
import shutil
import warnings

import pytest

import partita

torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from beside_torch import first, largest_difference, train_with_torch  # noqa: E402


class Net(nn.Module):
    """Convolution, batch norm, dropout, a scale, a buffer, a frozen layer."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(dropout)
        self.frozen = nn.Linear(4, 5).requires_grad_(False)
        self.head = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.ones(5))

    def forward(self, x):
        h = self.drop(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return self.head(self.frozen(h)) * self.scale + self.shift


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.embed(ids)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def test_four_steps_are_torchs(net, images):
    reference = copy.deepcopy(net)
    exported = partita.export(net, first(images), F.cross_entropy)
    assert exported.inputs == ("x", "target")
    assert exported.recipe.keys["trainable"] == ["scale", "conv.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"]
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    program = partita.compile(exported, partita.Recipe.from_torch(optimizer), ranks=2)
    program.train(images, 4)
    train_with_torch(reference, optimizer, images, F.cross_entropy, 4)
    before = net.frozen.weight.clone()
    program.load_into(net)
    assert largest_difference(net, reference) < 1e-6
    assert net.norm.num_batches_tracked == 4 and torch.equal(net.frozen.weight, before)


def test_a_run_goes_to_partita_and_back(images):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 5))
    reference = copy.deepcopy(module)
    straight = torch.optim.Adam(reference.parameters(), lr=1e-2)
    train_with_torch(reference, straight, images, F.cross_entropy, 4)

    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    train_with_torch(module, optimizer, images, F.cross_entropy, 1)
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), partita.Recipe.from_torch(optimizer))
    program.optimizer_state_from(optimizer, module)
    program.train({("input" if k == "x" else k): v[8:] for k, v in images.items()}, 2)
    program.load_into(module)
    program.optimizer_state_into(optimizer, module)
    assert optimizer.state[module[1].weight]["step"] == 3
    train_with_torch(module, optimizer, {k: v[24:] for k, v in images.items()}, F.cross_entropy, 1)
    assert largest_difference(module, reference) < 1e-6


def test_tied_weights_stay_tied():
    torch.manual_seed(0)
    module, ids = Tied(), torch.randint(0, 20, (8, 6))
    exported = partita.export(module, {"ids": ids}, lambda outputs, batch: F.cross_entropy(outputs.flatten(0, 1), batch["ids"].flatten()))
    assert exported.recipe.keys["trainable"] == ["embed.weight"]
    program = partita.compile(exported, partita.Recipe(optimizer={"kind": "sgd", "lr": 1.0}))
    before = module.embed.weight.detach().clone()
    program.train({"ids": ids}, 1)
    program.load_into(module)
    assert module.out.weight is module.embed.weight and not torch.equal(before, module.embed.weight)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1),
        lambda o, t: F.cross_entropy(o, torch.where(t == 0, -100, t), label_smoothing=0.1, weight=torch.arange(1.0, 6.0)),
        lambda o, t: F.cross_entropy(o, F.one_hot(t, 5).float() * 0.8 + 0.04, label_smoothing=0.2),
        lambda o, t: F.mse_loss(o, F.one_hot(t, 5).float()) + 0.1 * o.abs().mean(),
    ],
    ids=["smoothed", "smoothed-weighted", "probabilities", "own"],
)
def test_losses_are_what_they_say(net, images, loss):
    partita.export(net, first(images), loss)  # compares loss and gradients


@pytest.mark.parametrize("loss", [F.binary_cross_entropy_with_logits, lambda o, t: -F.logsigmoid(o * t).mean(), lambda o, t: F.softplus(o).mean()])
def test_losses_of_large_logits_are_finite(loss):
    module = nn.Linear(1, 1, bias=False)
    x = torch.tensor([[-500.0], [-90.0], [0.0], [90.0], [500.0]])
    with torch.no_grad():
        module.weight.fill_(1.0)
    partita.export(module, (x, torch.tensor([[1.0], [0.0], [1.0], [0.25], [0.0]])), loss)


def test_dropout_is_exported(images):
    module = Net(dropout=0.5)
    with pytest.warns(UserWarning, match="eval"):
        exported = partita.export(module.eval(), first(images), F.cross_entropy)
    assert not module.training and not module.drop.training
    program = partita.compile(exported, partita.Recipe(optimizer={"kind": "sgd", "lr": 0}))
    same = {k: v[:8].repeat(2, *[1] * (v.ndim - 1)) for k, v in images.items()}
    a, b = program.train(same, 2)
    assert a.loss != b.loss


def test_a_part_in_eval_stays_so(net, images):
    net.norm.eval()
    program = partita.compile(partita.export(net, first(images), F.cross_entropy), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}))
    program.train(images, 1)
    assert "norm.running_mean" not in program.parameters()


def test_a_wrong_export_is_found(net, images, monkeypatch):
    import partita.torch.export as export

    monkeypatch.setattr(export, "mark_batch_norms", lambda model, module, samples: {})
    with warnings.catch_warnings(), pytest.raises(partita.PartitaError, match="the export is not the module") as found:
        warnings.simplefilter("ignore")
        partita.export(net, first(images), F.cross_entropy)
    assert found.value.code == 4


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), _Branch())

    def forward(self, x):
        return self.inner(x)


class _Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


def test_what_cannot_be_captured_is_said_with_its_place():
    with pytest.raises(partita.PartitaError, match=r"inner\.1 \(test_torch\.py:\d+, `if x\.sum\(\) > 0:`\): cannot be captured"):
        partita.export(Branching(), (torch.randn(8, 4), torch.randint(0, 4, (8,))), F.cross_entropy)


class _Scale(nn.Module):
    """Divides by a running maximum, or counts."""

    def __init__(self, divides):
        super().__init__()
        self.divides = divides
        self.register_buffer("largest", torch.ones(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if not self.training:
            return x / self.largest
        with torch.no_grad():
            self.largest.mul_(0.5).add_(0.5 * x.abs().max())
            self.steps += 1
        return x / self.largest if self.divides else x


@pytest.mark.parametrize("part, name", [(_Scale(True), r"1 \(test_torch\.py:\d+, `self\.largest\.mul_.*'1\.largest'"),
                                        (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), r"'1\.parametrizations\.weight\.0\._u'")])  # fmt: skip
def test_a_loss_that_depends_on_a_buffer_that_is_written_is_refused(part, name):
    net, example = nn.Sequential(nn.Linear(4, 4), part), (torch.randn(8, 4), torch.randn(8, 4))
    with pytest.raises(partita.PartitaError, match=name):
        partita.export(net, example, F.mse_loss)
    net[1].eval()
    partita.export(net, example, F.mse_loss)


@pytest.mark.parametrize("part, name", [(_Scale(False), "1.largest"), (nn.InstanceNorm1d(2, track_running_stats=True), "running statistics")])
def test_a_buffer_that_is_written_and_not_read_stays_as_it_is(part, name):
    with pytest.warns(UserWarning, match=name):
        partita.export(nn.Sequential(nn.Linear(4, 4), part), (torch.randn(8, 2, 4), torch.randn(8, 2, 4)), F.mse_loss)


class _Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.route, self.out = nn.Linear(4, 3), nn.Embedding(3, 2)

    def forward(self, x):
        return self.out(self.route(x).argmax(-1))


def test_a_parameter_that_no_gradient_reaches_stays_as_it_is():
    net, example = _Routed(), (torch.randn(8, 4), torch.randn(8, 2))
    program = partita.compile(partita.export(net, example, F.mse_loss), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}))
    program.train(dict(zip(program.inputs, example)), 1)
    trained = copy.deepcopy(net)
    with pytest.warns(UserWarning, match=r"route\.weight, route\.bias"):
        program.load_into(trained)
    assert torch.equal(net.route.weight, trained.route.weight) and not torch.equal(net.out.weight, trained.out.weight)


class _Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return torch.linalg.eigvalsh(self.weight @ self.weight.T) * x


def test_what_has_no_onnx_form_is_said_with_its_place():
    with pytest.raises(partita.PartitaError, match=r"1 \(test_torch\.py:\d+, `return torch\.linalg\.eigvalsh.*has no ONNX form"):
        partita.export(nn.Sequential(nn.Linear(4, 4), _Unknown()), (torch.randn(8, 4), torch.randint(0, 4, (8,))), F.cross_entropy)


def test_experts_are_captured_as_transformers_makes_them():
    """Its default sorts tokens by expert, by an operator that ONNX has not."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    net = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
        intermediate_size=32, moe_intermediate_size=16, mlp_only_layers=[0], max_position_embeddings=16, use_cache=False))  # fmt: skip
    form = net.config._experts_implementation
    tokens = torch.randint(0, 32, (4, 8))
    program = partita.compile(partita.export(net, {"input_ids": tokens, "labels": tokens}), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}))
    assert net.config._experts_implementation == form and form != "batched_mm"
    optimizer, trained = torch.optim.SGD(net.parameters(), 0.1), copy.deepcopy(net)
    net(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    program.train({"input_ids": tokens, "labels": tokens}, 1)
    program.load_into(trained)
    assert largest_difference(net, trained) < 1e-6


def test_loading_is_strict(net, images):
    program = partita.compile(partita.export(net, first(images), F.cross_entropy), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}))
    program.train(images, 1)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(partita.PartitaError, match="conv.weight was trained, and the module has no"):
        program.load_into(nn.Sequential(net))
    net.extra = nn.Parameter(torch.ones(3))
    with pytest.raises(partita.PartitaError, match="extra of the module is trainable, and was not trained"):
        program.load_into(net)
    del net.extra
    net.head = nn.Linear(5, 6)
    with pytest.raises(partita.PartitaError, match=r"head.bias: the module has shape \(6,\), trained was \(5,\)"):
        program.load_into(net)
    assert torch.equal(net.conv.weight, before["conv.weight"])


class _BiasedAttention(nn.Module):
    """Attention with a trained bias, as T5 and Swin have it: where its result lies in memory, captured, is not where it lies decomposed."""

    def __init__(self):
        super().__init__()
        self.project, self.bias, self.out = nn.Linear(8, 24), nn.Embedding(24, 2), nn.Linear(8, 5)

    def forward(self, x):
        q, k, v = self.project(x.flatten(1, 2)).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, dim=1)
        place = torch.arange(24)
        bias = self.bias((place[:, None] - place).abs()).permute(2, 0, 1)[None]
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.out(h.transpose(1, 2).contiguous().reshape(8, 24, 8)).mean(1)


def test_attention_with_a_trained_bias(images):
    torch.manual_seed(0)
    partita.export(_BiasedAttention(), first(images), F.cross_entropy)  # compares loss and gradients


class _Padded(nn.Module):
    """A tied table whose row 0 is padding: lookups give it no gradient, the product does. And a detached factor."""

    def __init__(self):
        super().__init__()
        self.table, self.gate = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 1)

    def forward(self, ids):
        h = self.table(ids).mean(1)
        return (h * self.gate(h).detach() + h) @ self.table.weight.T


class Rotated(nn.Module):
    """Positions as rotations of complex numbers, as Llama's first code has them."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        angles = torch.outer(torch.arange(6.0), 0.1 ** torch.arange(2))
        self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        pairs = torch.view_as_complex(self.query(x).reshape(*x.shape[:-1], 2, 2, 2))
        rotation = (self.rotation * 0.9).unsqueeze(-2).expand(x.shape[0], -1, 2, -1)
        turned = pairs * rotation * torch.tensor(2.0)
        return torch.view_as_real(turned).flatten(2).square().mean() + turned.select(-2, 0).abs().mean()


def test_complex_numbers_are_moved_about():
    torch.manual_seed(0)
    partita.export(Rotated(), (torch.randn(4, 6, 8),), loss="output")  # holds its gradients against torch's


def test_distances_of_all_pairs():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    partita.export(module, (torch.randn(4, 6, 3),) * 2, lambda o, t: (torch.cdist(o, o) + torch.cdist(o.squeeze(1), t, p=1.0)).mean())


def test_distributions_check_their_arguments_in_torch_alone():
    torch.manual_seed(0)
    batch = (torch.randn(8, 4), torch.randn(8, 1))
    partita.export(nn.Linear(4, 2), batch, lambda o, t: -torch.distributions.Normal(o[:, :1], F.softplus(o[:, 1:])).log_prob(t).mean())


def test_padding_and_what_is_detached_have_no_gradient():
    torch.manual_seed(0)
    module, ids = _Padded(), torch.tensor([[0, 1, 2], [0, 0, 3], [4, 5, 0], [1, 1, 0]])
    with torch.no_grad():
        module.table.weight[0] = 0.5
    module.gate.requires_grad_(False)
    partita.export(module, (ids, torch.tensor([1, 3, 0, 2])), F.cross_entropy)  # compares loss and gradients


class _WithoutGradients(nn.Module):
    """Parts without a gradient, and one that has one again within."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        with torch.no_grad():
            gate, same = self.a(x).sigmoid(), x
        h = self.a(x) * gate + same
        with torch.no_grad():
            scale = h.abs().max(dim=1, keepdim=True).values
            with torch.enable_grad():
                again = self.b(gate)
            halves = again / 2
        return self.out(h / scale + again + halves)


def test_no_gradient_flows_through_no_grad():
    torch.manual_seed(0)
    partita.export(_WithoutGradients(), (torch.randn(4, 8), torch.tensor([1, 3, 0, 2])), F.cross_entropy)  # compares loss and gradients


def test_volumes_and_adaptive_maxima():
    torch.manual_seed(0)
    layers = [nn.Conv3d(2, 4, 3, padding=1, groups=2, bias=False), nn.AdaptiveMaxPool3d((2, 1, 3)), nn.Flatten(2), nn.AdaptiveMaxPool1d(3), nn.Flatten()]
    partita.export(nn.Sequential(*layers, nn.Linear(12, 4)), (torch.randn(4, 2, 4, 5, 6), torch.tensor([1, 3, 0, 2])), F.cross_entropy)


class _Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.norm(x) - self.norm(-x * x))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_norm_that_is_called_twice_moves_twice(ranks):
    torch.manual_seed(0)
    data = {"x": torch.randn(24, 8), "target": torch.randint(0, 4, (24,))}
    module = _Twins()
    module.norm.num_batches_tracked += 3
    reference = copy.deepcopy(module)
    exported = partita.export(module, (data["x"][:8], data["target"][:8]), F.cross_entropy)
    program = partita.compile(exported, partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}), ranks=ranks)
    program.train(data, 3)
    train_with_torch(reference, torch.optim.SGD(reference.parameters(), lr=0.1), data, F.cross_entropy, 3)
    program.load_into(module)
    assert largest_difference(module, reference) < 1e-6
    assert module.norm.num_batches_tracked == reference.norm.num_batches_tracked == 9


class _Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(x) + self.norm(x.reshape(-1, 2, 8).sum(1)).repeat(2, 1)


def test_a_batch_norm_called_on_batches_of_different_sizes_is_refused():
    with pytest.raises(partita.PartitaError, match="^norm: this batch norm is called more than once in a step, on batches of different sizes"):
        partita.export(_Parts(), (torch.randn(4, 8), torch.tensor([1, 3, 0, 2])), F.cross_entropy)


class _Channels(nn.Module):
    """A batch norm whose rows are samples times channels."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(24, 5)

    def forward(self, x):
        return self.out(self.norm(x.mean(-1).flatten(0, 1)).reshape(8, 24))


def test_a_batch_norm_over_several_rows_a_sample(images, tmp_path):
    torch.manual_seed(0)
    module = _Channels()
    module.norm.num_batches_tracked += 5
    reference = copy.deepcopy(module)
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}))
    program.train(images, 2)
    train_with_torch(reference, torch.optim.SGD(reference.parameters(), lr=0.1), images, F.cross_entropy, 2)
    program.load_into(module)
    assert largest_difference(module, reference) < 1e-6
    shutil.copytree(program.folder / "checkpoints", tmp_path / "checkpoints")
    with pytest.warns(UserWarning, match="running variances are loaded as ONNX keeps them"):
        partita.from_checkpoint(tmp_path / "checkpoints").load_into(module)
    assert largest_difference(module, reference) > 1e-6
    partita.from_checkpoint(program.folder / "checkpoints").load_into(module)
    assert largest_difference(module, reference) < 1e-6


def test_sizes_may_be_left_open(net, images):
    reference = copy.deepcopy(net)
    exported = partita.export(net, first(images), F.cross_entropy, dynamic={"x": {0: "batch"}, "target": {0: "batch"}})
    program = partita.compile(exported, partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}, batch={"global": 32}), ranks=2)
    program.train(images, 1)
    F.cross_entropy(reference(images["x"]), images["target"]).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    program.load_into(net)
    assert largest_difference(net, reference) < 1e-6


def test_a_batch_norm_of_another_batch_is_warned_of(net, images):
    exported = partita.export(net, first(images), F.cross_entropy)
    with pytest.warns(UserWarning, match="a step is 2 runs of the graph, 8 samples each"):
        partita.compile(exported, partita.Recipe(batch={"global": 16}))


def test_what_the_loss_leaves_out_is_told(net, images):
    reference = copy.deepcopy(net)
    net.extra = nn.Parameter(torch.ones(3))
    with pytest.warns(UserWarning, match="extra is trainable, and the loss does not depend on it"):
        exported = partita.export(net, first(images), F.cross_entropy)
    program = partita.compile(exported, partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}))
    program.train(images, 2)
    train_with_torch(reference, torch.optim.SGD(reference.parameters(), lr=0.1), images, F.cross_entropy, 2)
    program.load_into(net)
    del net.extra
    assert largest_difference(net, reference) < 1e-6
