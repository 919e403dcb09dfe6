"""What is said of modules whose export may not be what they are."""

import copy
import warnings

import pytest

import partita

torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from beside_torch import first, largest_difference  # noqa: E402

LOSSES = {
    "sum": lambda o, t: F.mse_loss(o, t, reduction="sum"),
    "mean and sum": lambda o, t: F.mse_loss(o, t) + 0.01 * o.pow(2).sum(),
    "divided by the batch": lambda o, t: (o - t).pow(2).sum() / len(o),
    "compared": lambda o, t: F.mse_loss(o, t) + (o @ o.T).pow(2).mean(),
    "picked": lambda o, t: o[torch.arange(len(o)), (t[:, 0] > 0).long()].pow(2).mean(),
}  # fmt: skip
BAKED = {
    "deviation": lambda o, t: F.mse_loss(o, t) + o.std(0).mean(),
    "pairs": lambda o, t: F.mse_loss(o, t) + (o @ o.T).pow(2).sum() / (len(o) * (len(o) - 1)),
    "positions": lambda o, t: (torch.arange(len(o)) / len(o) * (o - t).pow(2).mean(1)).mean(),
}  # fmt: skip


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def of_eight(module, loss):
    """The program of an export with four samples, whose steps take eight; and these."""
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 3, generator=draw), torch.randn(8, 2, generator=draw)
    exported = partita.export(module, (x[:4], y[:4]), loss)
    return partita.compile(exported, partita.Recipe(optimizer={"kind": "sgd", "lr": 1.0}, batch={"global": 8})), x, y


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_steps_of_more_samples_have_torchs_loss_and_gradient(layer, loss):
    program, x, y = of_eight(layer, loss)
    before = layer.weight.detach().clone()
    expected = loss(layer(x), y)
    gradient = torch.autograd.grad(expected, layer.weight)[0]
    with program.session(threads=1) as session:
        assert session.step((x, y)) == pytest.approx(float(expected.detach()), rel=1e-5)
    program.load_into(layer)
    torch.testing.assert_close(before - layer.weight.detach(), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", BAKED.values(), ids=BAKED)
def test_numbers_made_of_the_number_of_samples_are_found(layer, loss):
    with pytest.raises(partita.PartitaError, match="the example has 4 samples, and twice as many have a loss of"):
        of_eight(layer, loss)


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


def clamped(o, t):
    o.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return F.mse_loss(o, t)


def test_backwards_that_are_not_run_are_told(layer):
    x, y = torch.randn(4, 3), torch.zeros(4, 2)
    with pytest.warns(UserWarning, match="Clamp: a torch.autograd.Function is exported by its forward"):
        partita.export(layer, (x, y), lambda o, t: F.mse_loss(Clamp.apply(o), t))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        partita.export(layer, (x, y), F.mse_loss)
    with pytest.warns(UserWarning, match="a tensor made in forward has hooks on its gradient, which the program does not run"):
        partita.export(layer, (x, y), clamped)
    layer.bias.register_post_accumulate_grad_hook(lambda p: p.grad.zero_())
    with pytest.warns(UserWarning, match="bias has hooks on its gradient, which the program does not run"):
        partita.export(layer, (x, y), F.mse_loss)


def test_steps_of_more_samples_in_16_bits_are_torchs_but_for_rounding():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).to(torch.bfloat16)
    x = torch.randn(16, 16, dtype=torch.bfloat16)
    exported = partita.export(module, (x[:8], x[:8, :8]), F.mse_loss)
    program = partita.compile(exported, partita.Recipe(optimizer={"kind": "sgd", "lr": 0.0}, batch={"global": 16}))
    with program.session(threads=1) as session:
        assert session.step((x, x[:, :8])) == pytest.approx(float(F.mse_loss(module(x), x[:, :8])), rel=2e-2)


def test_random_numbers_are_told(layer):
    def noisy(o, t):
        return F.mse_loss(o + torch.randn_like(o), t)

    x, y = torch.zeros(4, 3), torch.zeros(4, 2)
    with pytest.warns(UserWarning, match="RandomNormalLike .* draws random numbers, anew in each step"):
        program = partita.compile(partita.export(layer, (x, y), noisy), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.0}))
    with program.session(threads=1) as session:
        losses = {session.step((x, y)) for _ in range(3)}
    assert len(losses) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_modules_in_16_bits_are_torchs_but_for_rounding(dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(12, 8), nn.Tanh(), nn.Linear(8, 12)).to(dtype)
    ids = torch.randint(0, 12, (4, 5))
    for loss in (lambda o, t: F.cross_entropy(o.float().flatten(0, 1), t.flatten()), lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten())):
        program = partita.compile(partita.export(module, (ids, ids), loss), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.0}))
        with program.session(threads=1) as session:
            assert session.step((ids, ids)) == pytest.approx(float(loss(module(ids), ids).detach()), rel=torch.finfo(dtype).eps)


def test_a_number_among_the_inputs(layer):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, y, weight):
            return weight * F.mse_loss(self.layer(x), y)

    module, batch = Weighted(), {"x": torch.randn(4, 3), "y": torch.randn(4, 2), "weight": torch.tensor(1.0)}
    program = partita.compile(partita.export(module, batch), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.0}))
    with program.session(threads=1) as session:
        for weight in (1.0, 0.5):
            batch["weight"] = torch.tensor(weight)
            assert session.step(batch) == pytest.approx(float(module(**batch).detach()), rel=1e-5)


def test_inputs_in_16_bits_are_compared(layer):
    class Widened(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x.float())

    partita.export(Widened(), (torch.randn(4, 3).bfloat16(), torch.randn(4, 2)), F.mse_loss)


def test_parameters_in_16_bits_are_loaded(images):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(192, 5), nn.Parameter(torch.ones(5, dtype=torch.bfloat16))

        def forward(self, x):
            return self.layer(x.flatten(1)) * self.scale.float()

    torch.manual_seed(0)
    module = Scaled()
    program = partita.compile(partita.export(module, first(images), F.cross_entropy), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.5}))
    program.train(images, 2)
    program.load_into(module)
    assert module.scale.dtype == torch.bfloat16 and not torch.equal(module.scale, torch.ones(5, dtype=torch.bfloat16))


def test_a_size_that_the_module_fixes_is_not_open(layer):
    def by_place(o, t):
        return (torch.tensor([float(k) for k in range(len(o))]) * (o - t).pow(2).mean(1)).mean()

    example = (torch.randn(4, 3), torch.randn(4, 2))
    with pytest.raises(partita.PartitaError, match=r"dynamic: the module does not leave these sizes open: .*batch.*; a Python number"):
        partita.export(layer, example, by_place, dynamic={"input": {0: "batch"}, "target": {0: "batch"}})


class Attentions(nn.Module):
    """All forms of attention whose dropout lies within torch's operator."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
        self.layer.self_attn.dropout = 0.3

    def forward(self, x):
        q = self.layer(x).unflatten(2, (4, 4)).transpose(1, 2)
        half, below = q[:, :2], torch.ones(6, 6).tril()
        by_bool = F.scaled_dot_product_attention(q, q, q, below.bool(), 0.4)
        by_number = F.scaled_dot_product_attention(q, q, q, (below - 1) * 100, dropout_p=0.4, scale=0.3)
        grouped = F.scaled_dot_product_attention(q, half, half, dropout_p=0.4, is_causal=True, enable_gqa=True)
        return torch.stack([by_bool, by_number, grouped])


def test_dropout_within_attention_is_exported():
    torch.manual_seed(0)
    module, x = Attentions(), torch.randn(4, 6, 16)
    program = partita.compile(partita.export(module, (x, x[:, 0, 0]), lambda o, t: o.pow(2).mean()), partita.Recipe(optimizer={"kind": "sgd", "lr": 0.0}))
    assert not program.warnings
    with torch.no_grad(), program.session(threads=1) as session:
        theirs, ours = (torch.tensor(v) for v in ([float(module(x).pow(2).mean()) for _ in range(300)], [session.step((x, x[:, 0, 0])) for _ in range(300)]))
    assert abs(theirs.mean() - ours.mean()) < 4 * theirs.std() * (2 / 300) ** 0.5
    assert 0.75 < ours.std() / theirs.std() < 1.33


class BesideAReference(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.reference, self.route = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        with torch.no_grad():
            reference = self.reference(x)
        return self.policy(x) - reference + self.route(x).detach()


def test_what_torch_has_no_gradient_of_does_not_decay():
    torch.manual_seed(0)
    module, x, y = BesideAReference(), torch.randn(4, 3), torch.randn(4, 2)
    trained, idle = copy.deepcopy(module), "reference.weight, reference.bias, route.weight, route.bias: "
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5)
    with pytest.warns(UserWarning, match=idle + "trainable, and no gradient of the loss reaches it"):
        assert partita.export(module, (x, y), F.mse_loss, check=False).recipe.keys["trainable"] == ["policy.weight", "policy.bias"]
    with pytest.warns(UserWarning, match=idle):
        program = partita.compile(partita.export(module, (x, y), F.mse_loss), partita.Recipe.from_torch(optimizer))
    with program.session(threads=1) as session:
        for _ in range(2):
            session.step((x, y))
            optimizer.zero_grad()
            F.mse_loss(module(x), y).backward()
            optimizer.step()
    with pytest.warns(UserWarning, match=idle + "frozen, or no gradient reaches it"):
        program.load_into(trained)
    assert largest_difference(module, trained) < 1e-6


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(2))

    def forward(self, outputs, target):
        return F.mse_loss(outputs @ self.weight, target)


def test_parameters_of_a_loss_are_refused_or_told(layer):
    loss, x, y = Prototypes(), torch.randn(4, 3), torch.randn(4, 2)
    with pytest.raises(partita.PartitaError, match="loss: its 'weight' is a trainable parameter.*Make the loss a part of the module"):
        partita.export(layer, (x, y), loss)
    with pytest.warns(UserWarning, match=r"a tensor of shape \(2, 2\) that is no parameter of the module requires a gradient: it is not trained"):
        partita.export(layer, (x, y), lambda o, t: loss(o, t))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        partita.export(layer, (x, y), loss.requires_grad_(False))


class Counting(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.seen, self.name = layer, (0, 0.5), "counting"

    def forward(self, x):
        self.seen = (self.seen[0] + 1, 0.5)
        return self.layer(x) * self.seen[0]


def test_attributes_that_forward_changes_are_told(layer):
    module = nn.Sequential(Counting(layer))
    with pytest.warns(UserWarning, match=r"^0\.seen is changed by forward \(\(0, 0\.5\) to \(1, 0\.5\)\): every step") as told:
        partita.export(module, (torch.randn(4, 3), torch.randn(4, 2)), F.mse_loss, check=False)
    assert [w.filename for w in told if "seen" in str(w.message)] == [__file__]


class PaddedAttention(nn.Module):
    """Rows that see no key, as the last position of left padding is one whose result a causal loss reads."""

    def __init__(self, added):
        super().__init__()
        self.key, self.added = nn.Linear(4, 4), added

    def forward(self, x, seen):
        seen = (seen[:, None, :] > 0) & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if not self.added:
            x = x[:, None]  # one head
            return F.scaled_dot_product_attention(x, self.key(x), x, attn_mask=seen[:, None])[:, 0]
        scores = x @ self.key(x).transpose(1, 2) + torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("added", [False, True])
def test_rows_whose_keys_are_all_padding_are_torchs(added):
    torch.manual_seed(0)
    x, y, seen = torch.randn(2, 6, 4), torch.randn(2, 6, 4), torch.arange(6)[None] >= torch.tensor([0, 3])[:, None]
    module = PaddedAttention(added)
    program = partita.compile(partita.export(module, (x, seen.long(), y), F.mse_loss), partita.Recipe(optimizer={"kind": "sgd", "lr": 1.0}))
    before = module.key.weight.detach().clone()
    gradient = torch.autograd.grad(F.mse_loss(module(x, seen), y), module.key.weight)[0]
    with program.session(threads=1) as session:
        session.step((x, seen.long(), y))
    program.load_into(module)
    torch.testing.assert_close(before - module.key.weight.detach(), gradient, rtol=2e-3, atol=1e-6)


def test_inputs_may_be_called_as_the_exporter_calls_values():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, mul, t):  # values of the graph have the names t and mul as well
            return (self.layer(mul) * 2) @ self.layer(t).t()

    exported = partita.export(Towers(), (torch.randn(8, 4), torch.randn(8, 4), torch.arange(8)), F.cross_entropy)
    assert exported.inputs == ("mul", "t", "target")
