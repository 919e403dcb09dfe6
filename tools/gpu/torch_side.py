"""PyTorch's step of one model of gpu_check's speed part: torch_side.py gpt2_124m. Prints one JSON object with the median step of each mode."""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

SIZES = {"gpt2_124m": (12, 768, 12, 8), "gpt2_350m": (24, 1024, 16, 4)}  # layers, width, heads, batch
VOCABULARY, POSITIONS, STEPS = 50257, 1024, 12


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


class Gpt(torch.nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(POSITIONS, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCABULARY).float(), targets.view(-1))


def run(name, precision, compiled):
    layers, width, heads, batch = SIZES[name]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    model = Gpt(layers, width, heads).cuda()
    step_model = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(VOCABULARY, (batch, POSITIONS), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = step_model(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return {"precision": precision, "step_seconds": statistics.median(seconds[3:]), "peak_bytes": torch.cuda.max_memory_allocated()}


def main():
    modes = {}
    for precision in ("fp32", "tf32", "bf16"):
        for compiled in (False, True):
            mode = f"{precision} {'compile' if compiled else 'eager'}"
            try:
                modes[mode] = run(sys.argv[1], precision, compiled)
            except Exception as fault:  # torch.compile needs a compiler, which may not be there
                modes[mode] = {"error": str(fault)[-300:]}
            torch.cuda.empty_cache()
            print(json.dumps({"modes": modes}), flush=True)


if __name__ == "__main__":
    main()
