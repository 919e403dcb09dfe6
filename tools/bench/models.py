"""The benchmark's models, written in plain PyTorch. Each entry of MODELS says how to build one, what a batch is and how many steps a round has."""
import math
from dataclasses import dataclass
from typing import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

OPTIMIZER = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


class Attention(nn.Module):
    """Packed projections, biases as in GPT-2 and BERT."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, w // self.heads).transpose(1, 2) for t in self.qkv(x).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, s, w))


class Block(nn.Module):
    def __init__(self, width, heads, causal, before, approximate):
        super().__init__()
        self.before, self.approximate = before, approximate
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def mlp(self, x):
        return self.down(F.gelu(self.up(x), approximate=self.approximate))

    def forward(self, x):
        if self.before:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Gpt2(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, vocabulary=50257, sequence=256):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads, True, True, "tanh") for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in (self.tokens.weight, self.places.weight):
            nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, ffn):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False), nn.Linear(ffn, width, bias=False)

    def forward(self, x, cos, sin):
        b, s, w = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, s, self.heads, w // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))

        def rotate(t):
            low, high = t.chunk(2, dim=-1)
            return t * cos + torch.cat((-high, low), dim=-1) * sin

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers=8, width=512, heads=8, ffn=1376, vocabulary=32000, sequence=256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, ffn) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        rate = 10000.0 ** (-torch.arange(0, width // heads, 2) / (width // heads))
        angle = torch.outer(torch.arange(sequence), rate).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids, targets):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Bert(nn.Module):
    """The layers alone: hidden states in, hidden states out."""

    def __init__(self, layers=12, width=768, heads=12):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width, heads, False, False, "none") for _ in range(layers)))

    def forward(self, x):
        return self.blocks(x)


class Vit(nn.Module):
    def __init__(self, layers=12, width=192, heads=3, patch=16, image=224, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, False, True, "none") for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.short = None
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


class Resnet18(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        layers, width = [], 64
        for outputs in (64, 128, 256, 512):
            layers += [Residual(width, outputs, 1 if outputs == 64 else 2), Residual(outputs, outputs, 1)]
            width = outputs
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(512, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1))


def mlp():
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))


def tokens(batch, sequence, vocabulary):
    def data(samples, random):
        text = random.integers(0, vocabulary, (samples * batch, sequence + 1))
        return {"ids": text[:, :-1].copy(), "targets": text[:, 1:].copy()}

    return data


def images(batch, shape, classes):
    def data(samples, random):
        return {"x": random.standard_normal((samples * batch, *shape), dtype=np.float32), "target": random.integers(0, classes, samples * batch)}

    return data


def hidden(batch, shape):
    def data(samples, random):
        return {k: random.standard_normal((samples * batch, *shape), dtype=np.float32) for k in ("x", "target")}

    return data


@dataclass
class Model:
    title: str
    make: Callable[[], nn.Module]
    data: Callable
    batch: int
    loss: str  # output: the module returns it; else of its result and `target`
    steps: int  # timed steps of a round
    dynamo: bool = True


MODELS = {
    "gpt2": Model("GPT-2 124M, batch 4, sequence 256", Gpt2, tokens(4, 256, 50257), 4, "output", 3),
    "llama": Model("Llama-like 58M, batch 4, sequence 256", Llama, tokens(4, 256, 32000), 4, "output", 4),
    "bert": Model("BERT-base's 12 layers, batch 4, sequence 128", Bert, hidden(4, (128, 768)), 4, "mse", 4),
    "resnet18": Model("ResNet-18, batch 32, 64x64", Resnet18, images(32, (3, 64, 64), 1000), 32, "cross_entropy", 8, dynamo=False),
    "vit": Model("ViT-tiny, batch 8, 224x224", Vit, images(8, (3, 224, 224), 1000), 8, "cross_entropy", 6),
    "mlp": Model("MLP 784-128-64-10, batch 32", mlp, images(32, (784,), 10), 32, "cross_entropy", 400),
}


def loss_of(model: Model, module, batch):
    if model.loss == "output":
        return module(*batch)
    if model.loss == "mse":
        return F.mse_loss(module(batch[0]), batch[1])
    return F.cross_entropy(module(batch[0]), batch[1])


def recipe(model: Model) -> str:
    o = OPTIMIZER
    loss = "{kind: output}" if model.loss == "output" else "{kind: %s, output: y, target: target}" % model.loss
    return (f"loss: {loss}\n"
            f"optimizer: {{kind: adamw, lr: {o['lr']}, betas: [{o['betas'][0]}, {o['betas'][1]}], eps: {o['eps']}, weight_decay: {o['weight_decay']}}}\n"
            f"batch: {{global: {model.batch}}}\n"
            "precision: fp32\n")


def batches(model: Model, arrays):
    """The arrays as a list of steps."""
    columns = [torch.from_numpy(arrays[k]) for k in arrays]
    return list(zip(*(c.split(model.batch) for c in columns)))
