"""What a step costs in a Python loop: PyTorch eager, `session.step`, and the same program by the runner, in turns over the same samples.

The overhead of `session.step` is what a call takes beyond the `seconds` that the program itself reports of that step, as the runner does in its
metrics: step by step, so that other work on the machine weighs on both. The DataLoader's part is left out of all. Medians of a round's steps, and of
these the median over the rounds; a round's first steps do not count."""
import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import partita

LEFT_OUT = 10  # steps at the beginning of a round


class Text(nn.Module):
    """A small transformer over tokens."""

    def __init__(self, width=128, layers=2, heads=4, vocabulary=512, length=64):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.blocks, self.out = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.out(self.blocks(self.tokens(ids) + self.places)).transpose(1, 2)


def mlp():
    x = torch.randn(4096, 32)
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 10)), x, (x[:, :10]).argmax(dim=1), 64


def text():
    ids = (torch.randint(0, 512, (512, 1)) + 7 * torch.arange(64)) % 512
    return Text(), ids, (ids + 7) % 512, 8


MODELS = {"mlp": mlp, "text": text}


def timed_round(loader, steps, step, own=lambda: 0.0):
    """Medians of a round: seconds of a step, of a step beyond `own` of it, and of the wait for its batch."""
    taken, beyond, waited, done = [], [], [], 0
    while done < steps:
        begin = time.perf_counter()
        for batch in loader:
            ready = time.perf_counter()
            step(batch)
            end = time.perf_counter()
            taken.append(end - ready)
            beyond.append(end - ready - own())
            waited.append(ready - begin)
            begin, done = end, done + 1
            if done == steps:
                break
    return [statistics.median(values[LEFT_OUT:]) for values in (taken, beyond, waited)]


def measure(name, args):
    torch.manual_seed(0)
    module, x, target, batch = MODELS[name]()
    data = torch.utils.data.TensorDataset(x, target)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    exported = partita.export(module, (x[:batch], target[:batch]), F.cross_entropy)
    recipe = partita.Recipe.from_torch(optimizer)
    run = partita.compile(exported, recipe)
    column, label = run.inputs
    program = partita.compile(exported, recipe)

    def eager(pair):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(pair[0]), pair[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    rounds = {"eager": [], "session": [], "overhead": [], "runner": [], "loader": []}
    with program.session(threads=args.threads) as session:
        for _ in range(args.rounds):
            rounds["eager"].append(timed_round(loader, args.steps, eager)[0])
            for kind, seconds in zip(("session", "overhead", "loader"), timed_round(loader, args.steps, session.step, lambda: session.metrics["seconds"])):
                rounds[kind].append(seconds)
            history = run.train({column: x, label: target}, args.steps, shuffle=True, threads=args.threads)
            rounds["runner"].append(statistics.median(m.seconds for m in history[LEFT_OUT:]))
    micro = {kind: 1e6 * statistics.median(values) for kind, values in rounds.items()}
    return {"model": name, "batch": batch, "microseconds": micro, "speedup": micro["eager"] / micro["session"]}


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/session", description=__doc__)
    parser.add_argument("--only", default=",".join(MODELS), help="models, of " + ", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of a round")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch and of the rank")
    parser.add_argument("--most", type=float, default=50, help="microseconds of overhead; more leaves with 1")
    parser.add_argument("--output", help="a JSON file for the numbers")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    results = []
    print(f"PyTorch {torch.__version__}, {args.threads} threads; microseconds a step, without the loader's")
    for name in args.only.split(","):
        r = measure(name, args)
        m = r["microseconds"]
        print(f"{name:6} eager {m['eager']:9.0f}   session.step {m['session']:9.0f} ({r['speedup']:.1f} times as fast)   runner {m['runner']:9.0f}   "
              f"overhead {m['overhead']:6.1f}   loader {m['loader']:7.0f}", flush=True)
        results.append(r)
    if args.output:
        about = {"torch": torch.__version__, "python": platform.python_version(), "cores": len(os.sched_getaffinity(0)), "threads": args.threads}
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump({"machine": about, "results": results}, file, indent=1)
            file.write("\n")
    sys.exit(any(r["microseconds"]["overhead"] > args.most for r in results))


if __name__ == "__main__":
    main()
