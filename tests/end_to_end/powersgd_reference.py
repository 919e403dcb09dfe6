#!/usr/bin/env python3
"""Writes tests/data/powersgd.json: the gradients that torch's PowerSGD hook gives to two ranks in the steps from its start on, for the terms below. Needs torch and numpy.

    powersgd_reference.py tests/data/powersgd.json
"""
import json, math, os, sys, tempfile
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

RANKS, ROWS, COLUMNS, RANK, STEPS, START = 2, 20, 20, 4, 4, 2


def term(rank):
    return torch.tensor([math.sin(0.37 * (k + 1) * (rank + 2)) / (1 + k % 7) for k in range(ROWS * COLUMNS)]).reshape(ROWS, COLUMNS)


class Product(torch.nn.Module):
    """Its weight's gradient is what it is called with."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, x):
        return (self.weight * x).sum()


def run(rank, rendezvous, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    model = torch.nn.parallel.DistributedDataParallel(Product())
    state = PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=START, use_error_feedback=True, warm_start=True)
    model.register_comm_hook(state, powerSGD_hook)
    with torch.random.fork_rng(devices=[]):  # as the hook draws it
        torch.manual_seed(np.random.RandomState(0).randint(1_000_000_000))
        start = torch.randn(COLUMNS, RANK)
    sums = []
    for _ in range(START + STEPS):
        model.zero_grad()
        model(term(rank)).backward()
        sums.append(model.module.weight.grad * RANKS)  # the hook gives the mean
    if rank == 0:
        round7 = lambda t: [float(f"{x:.8g}") for x in t.flatten().tolist()]
        with open(path, "w") as f:
            json.dump({"torch": torch.__version__.split("+")[0], "start": round7(start), "plain": round7(sums[0]), "steps": [round7(s) for s in sums[START:]]}, f)
            f.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(os.path.join(folder, "rendezvous"), sys.argv[1]), nprocs=RANKS)
