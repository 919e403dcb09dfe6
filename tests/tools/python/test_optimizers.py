"""Optimizers, schedules and averages of torch: the recipes they become, and their states."""

import copy
import importlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

import partita

torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim import lr_scheduler as schedulers  # noqa: E402

from beside_torch import first, largest_difference, train_with_torch  # noqa: E402


def test_optimizers_become_recipes():
    weight, bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    adamw = torch.optim.AdamW([{"params": [("w", weight)], "weight_decay": 0.1}, {"params": [("b", bias)], "weight_decay": 0.0}], lr=1e-3)
    keys = partita.Recipe.from_torch(adamw, clip=1.0, autocast=torch.bfloat16).keys
    assert keys["optimizer"] == {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "no_decay": ["b"]}
    assert (keys["clip_grad_norm"], keys["precision"]) == (1.0, "bf16")
    scaled = partita.Recipe.from_torch(adamw, autocast=torch.float16).keys
    assert (scaled["precision"], scaled["loss_scale"]["hysteresis"], scaled["loss_scale"]["window"]) == ("fp16", 1, 2000)
    assert partita.Recipe.from_torch(adamw, autocast=torch.float16, loss_scale=128.0).keys["loss_scale"] == 128.0
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
        lambda m: _grouped(torch.optim.Adagrad, m, initial_accumulator_value=0.5),
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


def test_an_optimizer_of_a_part_leaves_the_rest(images):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Tanh(), nn.Linear(8, 5))
    trained, optimizer = copy.deepcopy(net), torch.optim.SGD(net[3].parameters(), lr=0.1, momentum=0.9)
    batch = {name: values[:8] for name, values in images.items()}
    program = partita.compile(partita.export(net, tuple(batch.values()), F.cross_entropy), partita.Recipe.from_torch(optimizer))
    with program.session(threads=1) as session:
        for _ in range(3):
            session.step(list(batch.values()))
    with pytest.warns(UserWarning, match="1.weight, 1.bias: frozen"):
        program.load_into(trained)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(batch["x"]), batch["target"]).backward()
        optimizer.step()
    assert largest_difference(net, trained) < 1e-6


def test_an_optimizer_of_a_part_of_another_instance_leaves_the_rest():
    nets = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)) for _ in range(2)]
    recipe = partita.Recipe.from_torch(torch.optim.Adam(nets[0][1].parameters()), module=nets[0])
    for net in nets:
        assert recipe.left_out(dict(net.named_parameters())) == ["0.weight", "0.bias"]
    assert recipe.replaced(seed=1).left_out(dict(nets[1].named_parameters())) == ["0.weight", "0.bias"]
    assert recipe.left_out({"other": nn.Parameter(torch.ones(2))}) == []
    assert partita.Recipe.from_torch(torch.optim.Adam(nets[0][1].parameters())).left_out(dict(nets[1].named_parameters())) == []


def test_groups_are_named_by_the_module():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    decayed, others = [p for p in module.parameters() if p.ndim > 1], [p for p in module.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    assert partita.Recipe.from_torch(optimizer, module=module).keys["optimizer"]["no_decay"] == ["0.bias", "1.bias"]
    with pytest.raises(partita.PartitaError, match="group 1 has parameters that are none of the module's"):
        partita.Recipe.from_torch(optimizer, module=module[1])
    wrapped = nn.ModuleDict({"module": module})  # as DistributedDataParallel calls them
    for named in (torch.optim.AdamW([{"params": [("module." + n, p) for n, p in module.named_parameters() if p.ndim == d], "weight_decay": 0.2 - 0.1 * d}
                                     for d in (1, 2)]), optimizer):  # fmt: skip
        recipe = partita.Recipe.from_torch(named, module=None if named is not optimizer else wrapped)
        assert "module.1." in str(recipe.keys["optimizer"])
        assert "module." not in str(recipe.called_as(dict(module.named_parameters())).keys["optimizer"])
    different = torch.optim.Adam([{"params": decayed}, {"params": others, "decoupled_weight_decay": True}])
    with pytest.raises(partita.PartitaError, match=r"groups of different kinds \(adam, adamw\)"):
        partita.Recipe.from_torch(different, module=module)


class _CalledLikeGlobs(nn.Module):
    def __init__(self):
        super().__init__()
        self.of = nn.ParameterDict({name: nn.Parameter(torch.randn(4, 4)) for name in ("a*", "ab", "a[b]", "ac", "ad")})
        self.of["ac"].requires_grad_(False)

    def forward(self, x):
        for weight in self.of.values():
            x = torch.tanh(x @ weight)
        return x


def test_names_that_look_like_globs_are_names():
    torch.manual_seed(0)
    module, x, y = _CalledLikeGlobs(), torch.randn(8, 4), torch.randn(8, 4)
    reference, of = copy.deepcopy(module), module.of
    optimizer = torch.optim.SGD([{"params": [of["ab"]]}, {"params": [of["a*"]], "lr": 0.1}, {"params": [of["a[b]"]], "weight_decay": 0.5}], lr=1.0)
    wrapped = nn.ModuleDict({"module": module})
    recipe = partita.Recipe.from_torch(optimizer, module=wrapped, frozen="nothing*")
    program = partita.compile(partita.export(module, (x, y), F.mse_loss), recipe)
    with program.session(threads=1) as session:
        session.step((x, y))
    with pytest.warns(UserWarning, match="of.ad: frozen"):
        program.load_into(reference)
    F.mse_loss(module(x), y).backward()
    optimizer.step()
    assert largest_difference(module, reference) < 1e-6


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_sgd_goes_on_with_its_momentum_and_schedule(momentum):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batches = [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(6)]
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=momentum)
    scheduler = schedulers.StepLR(optimizer, 2, 0.5)

    def train(part):
        for x, y in part:
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
            scheduler.step()

    train(batches[:3])
    trained = copy.deepcopy(net)
    program = partita.compile(partita.export(net, batches[0], F.mse_loss), partita.Recipe.from_torch(optimizer, scheduler))
    program.optimizer_state_from(optimizer, net)
    with program.session(threads=1) as session:
        for batch in batches[3:]:
            session.step(batch)
    program.load_into(trained)
    train(batches[3:])
    assert largest_difference(net, trained) < 1e-6


def test_a_scheduler_that_has_taken_steps_goes_on_with_the_optimizers_states(mlp, points):
    net = nn.Linear(16, 4)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    scheduler = schedulers.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        net(torch.ones(16)).sum().backward()
        optimizer.step()
        scheduler.step()
    keys = {"loss": {"kind": "cross_entropy"}, "batch": {"global": 8}}
    program = partita.compile(mlp, partita.Recipe.from_torch(optimizer, scheduler, **keys))
    with pytest.raises(partita.PartitaError, match="scheduler: it had taken 2 steps when the recipe was made, and this program has taken none"):
        program.train(points, 1)
    assert partita.Recipe.from_torch(optimizer, **keys).keys["optimizer"]["lr"] == 0.025
    optimizer.param_groups[0]["lr"] = 0.1
    other = partita.compile(mlp, partita.Recipe.from_torch(optimizer, schedulers.StepLR(optimizer, 9), **keys))
    with pytest.warns(UserWarning, match="the optimizer has taken 2 steps and the scheduler 0"):
        other.optimizer_state_from(optimizer, net)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_beside_adamw_is_torchs(images, monkeypatch):
    monkeypatch.setattr(importlib.import_module("torch.optim._muon"), "torch", _WithoutBfloat16())
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # by which PyTorch 2.9 and 2.10 round
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
        lambda o: schedulers.LinearLR(o, 0.2, 1, 4),
        lambda o: schedulers.PolynomialLR(o, 6, 2.5),
        lambda o: schedulers.OneCycleLR(o, 0.1, 7, cycle_momentum=False),
        lambda o: schedulers.OneCycleLR(o, 0.1, 7, pct_start=0.4, anneal_strategy="linear", cycle_momentum=False, div_factor=5, three_phase=True),
        lambda o: schedulers.StepLR(o, 2, 0.5),
        lambda o: schedulers.MultiStepLR(o, [2, 5, 5], 0.5),
        lambda o: schedulers.ExponentialLR(o, 0.9),
        lambda o: _warm(o, schedulers.CosineAnnealingLR(o, 4, 0.01)),
        lambda o: _warm(o, schedulers.MultiStepLR(o, [1, 3], 0.5)),
        lambda o: schedulers.SequentialLR(o, [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.CosineAnnealingLR(o, 3)], [3]),
    ],
)
def test_schedulers_become_schedules(mlp, points, make):
    _expect_rates(mlp, points, make, 7)


def _expect_rates(mlp, points, make, count, **more):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    scheduler = make(optimizer)
    program = partita.compile(mlp, partita.Recipe.from_torch(optimizer, scheduler, loss={"kind": "cross_entropy"}, batch={"global": 8}, **more))
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose([m.lr for m in program.train(points, count)], rates, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda t, o: t.get_constant_schedule(o),
        lambda t, o: t.get_constant_schedule_with_warmup(o, 3),
        lambda t, o: t.get_linear_schedule_with_warmup(o, 2, 6),
        lambda t, o: t.get_cosine_schedule_with_warmup(o, 0, 6),
        lambda t, o: t.get_cosine_with_hard_restarts_schedule_with_warmup(o, 2, 6),
        lambda t, o: t.get_cosine_with_min_lr_schedule_with_warmup(o, 2, 6, min_lr_rate=0.2),
        lambda t, o: t.get_polynomial_decay_schedule_with_warmup(o, 2, 6, lr_end=0.01, power=2.0),
        lambda t, o: t.get_inverse_sqrt_schedule(o, 3),
        lambda t, o: t.get_wsd_schedule(o, 2, 3, 7, decay_type="linear", min_lr_ratio=0.1),
    ],
)
def test_schedules_of_transformers(mlp, points, make):
    optimization = pytest.importorskip("transformers.optimization")
    _expect_rates(mlp, points, lambda optimizer: make(optimization, optimizer), 7)


class WarmUpThenCosine:
    """A function of one's own."""

    def __call__(self, step):
        return 0.25 * (step + 1) if step < 4 else 0.5 * (1 + math.cos(math.pi * (step - 4) / 5))


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedulers.LambdaLR(o, lambda t: 0.5**t),
        lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.5, 3), schedulers.ExponentialLR(o, 0.9)]),
    ],
)
def test_any_scheduler_becomes_lines(mlp, points, make):
    _expect_rates(mlp, points, make, 8, steps=8)


def _share(points, step):
    """Of the rate, by the recipe's lines."""
    for (begin, low), (end, high) in zip(points, points[1:]):
        if begin <= step < end:
            return low + (high - low) * (step - begin) / (end - begin)
    return points[-1][1]


@pytest.mark.parametrize(
    "make, most",
    [
        (lambda o: schedulers.LambdaLR(o, lambda t: 0.5**t), 40),
        (lambda o: schedulers.LambdaLR(o, WarmUpThenCosine()), 300),
        (lambda o: schedulers.MultiStepLR(o, [0, 40], 0.5), 5),  # the first at once
        (lambda o: schedulers.MultiplicativeLR(o, lambda t: 0.5 if t % 50 == 0 else 1), 14),
        (lambda o: schedulers.CosineAnnealingLR(o, 40, 0.01), 300),  # goes up again
        (lambda o: schedulers.CosineAnnealingWarmRestarts(o, 20, 2, 0.001), 300),
        (lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 10, 20, cycle_momentum=False), 22),
        (lambda o: _warm(o, schedulers.LinearLR(o, 0.5, 1, 4)), 10),  # a warm-up of its own
        (lambda o: schedulers.SequentialLR(o, [schedulers.LinearLR(o, 0.1, 1, 9), schedulers.ConstantLR(o, 1), schedulers.ExponentialLR(o, 0.99)], [9, 200]), 130),
    ],
)
def test_lines_are_torchs_rates(make, most):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    scheduler = make(optimizer)
    recipe = partita.Recipe.from_torch(optimizer, scheduler, steps=300)
    lines = recipe.keys["schedule"]
    assert lines["kind"] == "piecewise" and len(lines["points"]) <= most
    highest = max(share for _, share in lines["points"])
    for step in range(300):  # the scheduler is as it was
        assert _share(lines["points"], step) * recipe.keys["optimizer"]["lr"] == pytest.approx(optimizer.param_groups[0]["lr"], abs=1.1e-7 * highest)
        optimizer.step()
        scheduler.step()
    with pytest.raises(partita.PartitaError, match="has taken 300 steps"):
        partita.Recipe.from_torch(optimizer, scheduler, steps=600)


def test_what_cannot_be_lines_is_refused():
    parts = [{"params": [nn.Parameter(torch.ones(2))], "lr": 0.1, "momentum": 0.5}, {"params": [nn.Parameter(torch.ones(2))], "lr": 0.2, "momentum": 0.5}]

    def refused(match, make):
        optimizer = torch.optim.SGD([dict(part) for part in parts])
        with pytest.raises(partita.PartitaError, match=match):
            partita.Recipe.from_torch(optimizer, make(optimizer), module=nn.ParameterList([p for part in parts for p in part["params"]]), steps=30)

    refused("LambdaLR the groups have .* of their rates at step 3", lambda o: schedulers.LambdaLR(o, [lambda t: 1, lambda t: 1 if t < 3 else 0.5]))
    refused("CosineAnnealingLR the groups have", lambda o: schedulers.CosineAnnealingLR(o, 20, 0.01))
    refused("OneCycleLR changes momentum at step 1", lambda o: schedulers.OneCycleLR(o, [0.1, 0.2], 30))
    refused("ReduceLROnPlateau has no counterpart: its rates do not follow", lambda o: schedulers.ReduceLROnPlateau(o))
    refused("LambdaLR has a rate of -0.1 at step 1", lambda o: schedulers.LambdaLR(o, lambda t: 1 - 2 * t))


def test_rates_that_were_changed_by_hand():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    schedulers.LinearLR(optimizer, 0.5)  # leaves a warm-up's rate
    assert partita.Recipe.from_torch(optimizer).keys["optimizer"]["lr"] == 0.05
    assert partita.Recipe.from_torch(optimizer, schedule={"kind": "constant"}).keys["optimizer"]["lr"] == 0.1
    scheduler = schedulers.ExponentialLR(optimizer, 0.9)
    with pytest.raises(partita.PartitaError, match="ExponentialLR left a rate of 0.1, and the optimizer has 0.05; set lr before"):
        partita.Recipe.from_torch(optimizer, scheduler)
    assert partita.Recipe.from_torch(optimizer, scheduler, steps=2).keys["schedule"]["points"] == [[0, 0.5], [1, pytest.approx(0.45)]]
    optimizer.param_groups[0]["lr"], scheduler.base_lrs = 0.1, [0.2]
    with pytest.raises(partita.PartitaError, match="ExponentialLR begins with a rate of 0.2, and the optimizer has 0.1"):
        partita.Recipe.from_torch(optimizer, scheduler)


def test_other_schedulers_are_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(partita.PartitaError, match="LambdaLR has no counterpart.*say steps=N"):
        partita.Recipe.from_torch(optimizer, schedulers.LambdaLR(optimizer, lambda t: 0.5**t))
    with pytest.raises(partita.PartitaError, match="a warm-up has to reach the rate where the decay begins"):
        parts = [schedulers.LinearLR(optimizer, 0.1, 1, 5), schedulers.CosineAnnealingLR(optimizer, 4)]
        partita.Recipe.from_torch(optimizer, schedulers.SequentialLR(optimizer, parts, [3]))
    parts = [schedulers.LinearLR(optimizer, 0.1, 1, 3), schedulers.LinearLR(optimizer, 0.5, 1, 4)]
    with pytest.raises(partita.PartitaError, match="LinearLR has a warm-up of its own behind a LinearLR.*say steps=N"):
        partita.Recipe.from_torch(optimizer, schedulers.SequentialLR(optimizer, parts, [3]))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    optimization = pytest.importorskip("transformers.optimization")
    with pytest.raises(partita.PartitaError, match="scheduler: cosine_with_restarts with {'num_cycles': 2} has no counterpart"):
        partita.Recipe.from_torch(optimizer, optimization.get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, 0, 6, num_cycles=2))
