"""Modules of torch: exported, trained, and loaded again."""

import copy
import importlib
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import partita

torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim import lr_scheduler as schedulers  # noqa: E402


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


@pytest.fixture(scope="module")
def images():
    draw = torch.Generator().manual_seed(1)
    return {"x": torch.randn(32, 3, 8, 8, generator=draw), "target": torch.randint(0, 5, (32,), generator=draw)}


def first(batch, count=8):
    return tuple(v[:count] for v in batch.values())


def train_with_torch(module, optimizer, batch, loss, steps, scheduler=None):
    for k in range(steps):
        optimizer.zero_grad()
        x, y = (v[8 * k : 8 * k + 8] for v in batch.values())
        loss(module(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def largest_difference(a, b):
    pairs = zip(a.state_dict().items(), b.state_dict().values())
    return max(float((x.double() - y.double()).abs().max()) for (_, x), y in pairs)


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


def test_padding_and_what_is_detached_have_no_gradient():
    torch.manual_seed(0)
    module, ids = _Padded(), torch.tensor([[0, 1, 2], [0, 0, 3], [4, 5, 0], [1, 1, 0]])
    with torch.no_grad():
        module.table.weight[0] = 0.5
    module.gate.requires_grad_(False)
    partita.export(module, (ids, torch.tensor([1, 3, 0, 2])), F.cross_entropy)  # compares loss and gradients


class _Channels(nn.Module):
    """A batch norm whose rows are samples times channels."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(24, 5)

    def forward(self, x):
        return self.out(self.norm(x.mean(-1).flatten(0, 1)).reshape(8, 24))


def test_a_batch_norm_over_several_rows_a_sample(images):
    torch.manual_seed(0)
    module = _Channels()
    reference = copy.deepcopy(module)
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}))
    program.train(images, 2)
    train_with_torch(reference, torch.optim.SGD(reference.parameters(), lr=0.1), images, F.cross_entropy, 2)
    program.load_into(module)
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


def test_optimizers_become_recipes():
    weight, bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    adamw = torch.optim.AdamW([{"params": [("w", weight)], "weight_decay": 0.1}, {"params": [("b", bias)], "weight_decay": 0.0}], lr=1e-3)
    keys = partita.Recipe.from_torch(adamw, clip=1.0, autocast=torch.bfloat16).keys
    assert keys["optimizer"] == {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "no_decay": ["b"]}
    assert (keys["clip_grad_norm"], keys["precision"]) == (1.0, "bf16")
    with pytest.raises(partita.PartitaError, match="NAdam has no counterpart"):
        partita.Recipe.from_torch(torch.optim.NAdam([weight]))
    with pytest.raises(partita.PartitaError, match="amsgrad=True"):
        partita.Recipe.from_torch(torch.optim.Adam([weight], amsgrad=True))
    with pytest.raises(partita.PartitaError, match="group 1 needs names"):
        partita.Recipe.from_torch(torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 1.0}], lr=0.1))


def _grouped(kind, module, **own):
    """The first layer's weight and all vectors have something of their own."""
    named = dict(module.named_parameters())
    vectors = [(n, p) for n, p in named.items() if p.ndim == 1]
    groups = [{"params": [("3.weight", named["3.weight"])]}, {"params": [("1.weight", named["1.weight"])], "lr": 0.002, **own},
              {"params": vectors, "weight_decay": 0.0, "lr": 0.03}]
    return kind(groups, lr=0.01, weight_decay=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.RMSprop(m.parameters(), weight_decay=0.1, eps=1e-4),
        lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.9, centered=True, eps=1e-4, lr=1e-3),
        lambda m: torch.optim.Adafactor(m.parameters(), weight_decay=0.1),
        lambda m: torch.optim.Adafactor(m.parameters(), eps=(1e-4, 0.1), d=1.5, beta2_decay=-0.5, lr=0.5),
        lambda m: _grouped(torch.optim.AdamW, m, betas=(0.8, 0.99)),
        lambda m: _grouped(torch.optim.SGD, m, momentum=0.5),
    ],
)
def test_other_optimizers_and_groups_are_torchs(images, make):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 5))
    reference = copy.deepcopy(module)
    optimizer = make(reference)
    scheduler = schedulers.StepLR(optimizer, 2, 0.5)
    recipe = partita.Recipe.from_torch(optimizer, scheduler)
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), recipe, ranks=2, like="zero3")
    program.train({("input" if k == "x" else k): v for k, v in images.items()}, 4)
    train_with_torch(reference, optimizer, images, F.cross_entropy, 4, scheduler)
    program.load_into(module)
    assert largest_difference(module, reference) < 2e-6
    states = copy.deepcopy(optimizer.state_dict()["state"])
    program.optimizer_state_into(optimizer, reference)
    for k, of in optimizer.state_dict()["state"].items():
        torch.testing.assert_close(of, states[k], rtol=1e-3, atol=1e-5, check_dtype=False)


class _WithoutBfloat16:
    """torch, whose bfloat16 is float32: Muon rounds to it."""

    def __getattr__(self, name):
        return torch.float32 if name == "bfloat16" else getattr(torch, name)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_beside_adamw_is_torchs(images, monkeypatch):
    monkeypatch.setattr(importlib.import_module("torch.optim._muon"), "torch", _WithoutBfloat16())
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5))
    reference = copy.deepcopy(module)
    named = dict(reference.named_parameters())
    rest = [n for n in named if n.endswith("bias")]
    muon = torch.optim.Muon([{"params": [("1.weight", named["1.weight"])]}, {"params": [("3.weight", named["3.weight"])], "lr": 0.01, "nesterov": False}],
                            lr=0.02, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([{"params": [(n, named[n]) for n in rest], "weight_decay": 0.0}, {"params": [("5.weight", named["5.weight"])], "lr": 1e-3}], lr=0.002)
    recipe = partita.Recipe.from_torch([muon, adamw])
    assert recipe.keys["optimizer"]["adamw"]["match"] == [*rest, "5.weight"]
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), recipe, ranks=2, like="zero3")
    program.train({("input" if k == "x" else k): v for k, v in images.items()}, 4)
    for k in range(4):
        adamw.zero_grad()
        train_with_torch(reference, muon, {name: v[8 * k :] for name, v in images.items()}, F.cross_entropy, 1)
        adamw.step()
    program.load_into(module)
    assert largest_difference(module, reference) < 1e-5
    states = [copy.deepcopy(o.state_dict()["state"]) for o in (muon, adamw)]
    program.optimizer_state_into([muon, adamw], reference)
    for optimizer, before in zip((muon, adamw), states):
        for k, of in optimizer.state_dict()["state"].items():
            torch.testing.assert_close(of, before[k], rtol=1e-3, atol=1e-5, check_dtype=False)
    with pytest.raises(partita.PartitaError, match=r"\[Muon, AdamW\] has a counterpart, found \[AdamW, Muon\]"):
        partita.Recipe.from_torch([adamw, muon])


class _AdamW8bit(torch.optim.Optimizer):
    """What bitsandbytes' AdamW8bit is to the package, which knows it by its name."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1})
        self.args = SimpleNamespace(optim_bits=8)

    def init_state(self, group, parameter, group_index, index):
        self.state[parameter]["qmap1"] = torch.zeros(256)


_AdamW8bit.__module__, _AdamW8bit.__name__ = "bitsandbytes.optim.adamw", "AdamW8bit"


def test_8_bit_states_go_both_ways(images, tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.Tanh(), nn.Linear(64, 5))
    optimizer = _AdamW8bit(module.parameters())
    recipe = partita.Recipe.from_torch(optimizer)
    assert recipe.keys["optimizer"] == {"kind": "adamw_8bit", "lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.1}
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), recipe)
    program.train({("input" if k == "x" else k): v for k, v in images.items()}, 1)
    program.optimizer_state_into(optimizer, module)
    weight, bias = optimizer.state[module[1].weight], optimizer.state[module[1].bias]
    assert weight["state1"].dtype == torch.uint8 and weight["state1"].shape == (64, 192)
    assert weight["absmax2"].shape == (48,) and weight["absmax2"].min() > 0
    assert bias["state1"].dtype == torch.float32 and "absmax1" not in bias
    again = partita.compile(partita.export(module, first(images), F.cross_entropy), recipe)
    again.optimizer_state_from(optimizer, module)
    again.train({("input" if k == "x" else k): v for k, v in images.items()}, 1)
    other = _AdamW8bit(module.parameters())
    again.optimizer_state_into(other, module)
    # It went on from there, with the same gradient: 0.9 m + 0.1 g, where m is 0.1 g to the rounding of its code.
    torch.testing.assert_close(other.state[module[1].weight]["absmax1"], 1.9 * weight["absmax1"], rtol=2e-2, atol=0)
    assert other.state[module[1].bias]["step"] == 2 and "qmap1" in other.state[module[1].weight]


def test_averages_are_those_of_swa_utils(images):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    reference = copy.deepcopy(module)
    averages = AveragedModel(reference, multi_avg_fn=get_ema_multi_avg_fn(0.75))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), partita.Recipe.from_torch(optimizer, ema={"decay": 0.75}), ranks=2)
    program.train({("input" if k == "x" else k): v for k, v in images.items()}, 3)
    for k in range(3):
        train_with_torch(reference, optimizer, {name: v[8 * k :] for name, v in images.items()}, F.cross_entropy, 1)
        averages.update_parameters(reference)
    program.load_into(module, ema=True)
    assert largest_difference(module, averages.module) < 1e-6


def _warm(optimizer, decay):
    return schedulers.SequentialLR(optimizer, [schedulers.LinearLR(optimizer, 1 / 3, 1, 2), decay], [3])


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedulers.CosineAnnealingLR(o, 6, 0.01),
        lambda o: schedulers.LinearLR(o, 1, 0.1, 6),
        lambda o: schedulers.PolynomialLR(o, 6, 2.5),
        lambda o: schedulers.OneCycleLR(o, 0.1, 7, cycle_momentum=False),
        lambda o: schedulers.OneCycleLR(o, 0.1, 7, pct_start=0.4, anneal_strategy="linear", cycle_momentum=False, div_factor=5, three_phase=True),
        lambda o: schedulers.StepLR(o, 2, 0.5),
        lambda o: schedulers.MultiStepLR(o, [2, 5, 5], 0.5),
        lambda o: schedulers.ExponentialLR(o, 0.9),
        lambda o: _warm(o, schedulers.CosineAnnealingLR(o, 4, 0.01)),
        lambda o: _warm(o, schedulers.MultiStepLR(o, [1, 3], 0.5)),
    ],
)
def test_schedulers_become_schedules(mlp, points, make):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    scheduler = make(optimizer)
    program = partita.compile(mlp, partita.Recipe.from_torch(optimizer, scheduler, loss={"kind": "cross_entropy"}, batch={"global": 8}))
    rates = []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose([m.lr for m in program.train(points, 7)], rates, rtol=1e-5, atol=1e-9)


def test_other_schedulers_are_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(partita.PartitaError, match="LambdaLR has no counterpart"):
        partita.Recipe.from_torch(optimizer, schedulers.LambdaLR(optimizer, lambda t: 0.5**t))
    with pytest.raises(partita.PartitaError, match=r"a warm-up over 3 steps is lr \* \(t \+ 1\) / 3"):
        parts = [schedulers.LinearLR(optimizer, 0.1, 1, 3), schedulers.CosineAnnealingLR(optimizer, 4)]
        partita.Recipe.from_torch(optimizer, schedulers.SequentialLR(optimizer, parts, [3]))
