"""`precision: fp8` beside torch: linear layers whose operands are torch's own float8 numbers."""

import copy

import pytest

import partita

torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

BLOCK = 32
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def rounded(x, dims, kind):
    """`x` in float8 and back, with a power of two as scale for each block of 32 along each of `dims`."""
    sizes = []
    for d, size in enumerate(x.shape):
        sizes += [size // BLOCK, BLOCK] if d in dims else [1, size]
    blocks = x.float().reshape(sizes)
    inside = [2 * d + 1 for d in dims]
    most = blocks.abs().amax(inside, keepdim=True).clamp(min=2.0**-70)
    scale = torch.exp2(torch.ceil(torch.log2(most / LARGEST[kind])))
    return ((blocks / scale).to(kind).float() * scale).reshape(x.shape).to(x.dtype)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, kind):
        ctx.save_for_backward(x, w)
        ctx.kind = kind
        return rounded(x, [2], torch.float8_e4m3fn) @ rounded(w, [0, 1], torch.float8_e4m3fn).T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx = rounded(g, [2], ctx.kind) @ rounded(w, [0, 1], torch.float8_e4m3fn)
        gs, xs = rounded(g, [1], ctx.kind), rounded(x, [1], torch.float8_e4m3fn)
        return dx, torch.einsum("bsn,bsk->nk", gs, xs), None


class Layers(nn.Module):
    """The first and the last product stay in bf16; `kind` None: all of them."""

    def __init__(self, kind=None):
        super().__init__()
        self.kind = kind
        self.first, self.up, self.down, self.head = nn.Linear(8, 64), nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 5)

    def linear(self, layer, x):
        if self.kind is None:
            return layer(x)
        y = Product.apply(x.bfloat16(), layer.weight.bfloat16(), self.kind)
        return (y.float() + layer.bias).bfloat16()

    def forward(self, x):
        x = self.first(x)
        x = x + self.linear(self.down, F.gelu(self.linear(self.up, x)))
        return self.head(x).transpose(1, 2)


def distance(a, b):
    """Between the weights that go through products of fp8 numbers, forward or back."""
    names = ("first.weight", "up.weight", "down.weight")
    return sum((dict(a.named_parameters())[n] - dict(b.named_parameters())[n]).square().sum() for n in names).sqrt().item()


def test_fp8_products_are_of_torchs_float8_numbers():
    torch.manual_seed(0)
    x, target = torch.randn(16, 32, 8), torch.randint(0, 5, (16, 32))
    module = Layers()
    by_torch = {}
    for kind in (None, torch.float8_e4m3fn, torch.float8_e5m2):
        m = by_torch[kind] = copy.deepcopy(module)
        m.kind = kind
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        for k in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                F.cross_entropy(m(x[4 * k : 4 * k + 4]), target[4 * k : 4 * k + 4]).backward()
            optimizer.step()
    exported = partita.export(module, (x[:4], target[:4]), F.cross_entropy)
    for name, own in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        recipe = partita.Recipe(optimizer={"kind": "sgd", "lr": 0.1}, precision="fp8", fp8={"block": BLOCK, "gradients": name})
        program = partita.compile(exported, recipe)
        program.train({"x": x, "target": target}, 4)
        trained = copy.deepcopy(module)
        program.load_into(trained)
        # Sums in another order turn one rounding in thirty, each by 6 %; another rule turns all of them.
        for kind, other in by_torch.items():
            if kind is not own:
                assert distance(trained, by_torch[own]) < 0.6 * distance(trained, other), (name, kind)
