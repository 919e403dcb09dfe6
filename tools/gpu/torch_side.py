"""PyTorch's step of one model of gpu_check's speed part, in one precision: torch_side.py gpt2_124m bf16 [LOCK]. Prints a JSON object with the median step of torch.compile, or of eager where that fails.

`torch_side.py ceilings`: what this GPU reaches in a large product and a large copy. LOCK is a file that is locked while steps are timed, so that compiling may go on beside other timings."""
import contextlib
import fcntl
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

WARM, STEPS = 2, 9


class Gpt(torch.nn.Module):
    """GPT-2, as `partita model gpt` writes it."""

    class Block(torch.nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            b, s, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def __init__(self, layers, width, heads, vocabulary, positions):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(positions, width)
        self.blocks = torch.nn.ModuleList(Gpt.Block(width, heads) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x))
        return F.cross_entropy(x.view(-1, x.shape[-1]).float(), targets.view(-1))


class Llama(torch.nn.Module):
    class Block(torch.nn.Module):
        def __init__(self, width, heads, key_heads, inner):
            super().__init__()
            self.heads, self.key_heads, self.size = heads, key_heads, width // heads
            self.norm1, self.norm2 = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
            self.q, self.out = torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width, bias=False)
            self.k, self.v = (torch.nn.Linear(width, key_heads * self.size, bias=False) for _ in range(2))
            self.gate, self.up = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = torch.nn.Linear(inner, width, bias=False)

        def turned(self, x, cos, sin):
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

        def forward(self, x, cos, sin):
            b, s, d = x.shape
            y = self.norm1(x)
            q = self.turned(self.q(y).view(b, s, self.heads, self.size).transpose(1, 2), cos, sin)
            k = self.turned(self.k(y).view(b, s, self.key_heads, self.size).transpose(1, 2), cos, sin)
            v = self.v(y).view(b, s, self.key_heads, self.size).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, d))
            y = self.norm2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def __init__(self, layers, width, heads, key_heads, inner, vocabulary, positions):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(Llama.Block(width, heads, key_heads, inner) for _ in range(layers))
        self.norm, self.head = torch.nn.RMSNorm(width), torch.nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(positions), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = self.head(self.norm(x))
        return F.cross_entropy(x.view(-1, x.shape[-1]).float(), targets.view(-1))


def tokens_of(batch, vocabulary, positions):
    tokens = torch.randint(vocabulary, (batch, positions), device="cuda")
    return tokens, tokens


class Resnet(torch.nn.Module):
    """torchvision's, as `partita model resnet` writes it, in the layout that is fast here."""

    def __init__(self):
        super().__init__()
        import torchvision
        self.model = torchvision.models.resnet50().to(memory_format=torch.channels_last)

    def forward(self, images, labels):
        return F.cross_entropy(self.model(images).float(), labels)


def images_of(batch):
    images = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    return images, torch.randint(1000, (batch,), device="cuda")


MODELS = {
    "gpt2_124m": (lambda: Gpt(12, 768, 12, 50257, 1024), lambda: tokens_of(16, 50257, 1024)),
    "gpt2_350m": (lambda: Gpt(24, 1024, 16, 50257, 1024), lambda: tokens_of(16, 50257, 1024)),
    "llama_1b": (lambda: Llama(20, 2048, 32, 8, 5632, 32000, 2048), lambda: tokens_of(4, 32000, 2048)),
    "resnet_50": (Resnet, lambda: images_of(128)),
}


@contextlib.contextmanager
def alone(path):
    """Nobody else who asks for the file's lock has the GPU meanwhile."""
    if not path:
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(name, precision, compiled, lock):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    make, data_of = MODELS[name]
    model, data = make().cuda(), data_of()
    step_model = torch.compile(model) if compiled else model
    if name == "resnet_50":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    torch.cuda.reset_peak_memory_stats()

    def step():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = step_model(*data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    step()  # compiles
    with alone(lock):
        for _ in range(WARM):
            step()
        seconds = [step() for _ in range(STEPS)]
    return {"precision": precision, "step_seconds": statistics.median(seconds), "peak_bytes": torch.cuda.max_memory_allocated()}


def ceilings():
    """FLOP/s of a bf16, tf32 and fp32 product of 8192 squared on random numbers, bytes/s read and written of a copy of 4 GiB."""

    def median(work, repeat=10):
        times = []
        for _ in range(repeat + 3):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3)
        return statistics.median(times[3:])

    result, n = {}, 8192
    for name, dtype, tf32 in (("bf16", torch.bfloat16, False), ("tf32", torch.float32, True), ("fp32", torch.float32, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        result[f"{name}_flops"] = 2 * n**3 / median(lambda: torch.mm(a, b, out=a.new_empty(n, n)))
    x = torch.randn(1 << 29, device="cuda")
    y = torch.empty_like(x)
    result["copy_bytes"] = 2 * x.numel() * 4 / median(lambda: y.copy_(x))
    return result


def main():
    if sys.argv[1] == "ceilings":
        print(json.dumps(ceilings()))
        return
    name, precision = sys.argv[1:3]
    lock = sys.argv[3] if len(sys.argv) > 3 else ""
    modes = {}
    for compiled in (True, False):  # without a compiler there, eager is what remains
        mode = f"{precision} {'compile' if compiled else 'eager'}"
        try:
            modes[mode] = run(name, precision, compiled, lock)
            break
        except Exception as fault:
            modes[mode] = {"error": str(fault)[-300:]}
            torch.cuda.empty_cache()
    print(json.dumps({"modes": modes}), flush=True)


if __name__ == "__main__":
    main()
