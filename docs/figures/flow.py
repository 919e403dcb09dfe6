#!/usr/bin/env python3
"""Draws docs/figures/flow.svg: from a model's file to the ranks of a cluster.

  docs/figures/flow.py > docs/figures/flow.svg     (tools/check_documents compares the two)
"""
from drawing import arrow, box, text, write

STEP_Y, STEP_HEIGHT, STEP_WIDTH, STEP_GAP = 118, 88, 158, 32

# Of each function from file to program: its name, its room, and what it does.
STEPS = [
    ("read_model", "frontend", ["ONNX becomes", "our graph"]),
    ("training_graph", "passes", ["loss, gradients,", "optimizer"]),
    ("shard", "partitioner", ["a sharding for", "each tensor"]),
    ("localize_stages", "partitioner", ["local shapes,", "collectives"]),
    ("emit", "codegen", ["machine code,", "memory, schedule"]),
]


def file(x, y, name, what, width=150):
    return [box(x, y, width, 44, "box"), text(x + width / 2, y + 18, name, "file"), text(x + width / 2, y + 35, what, "small")]


def column(k):
    return 8 + k * (STEP_WIDTH + STEP_GAP)


def draw():
    out = []
    # What the user has.
    out += file(column(0) + 4, 12, "model.onnx", "from PyTorch")
    out += file(column(1) + 4, 12, "train.yaml", "loss, optimizer, batch")
    out += file(column(2) - 24, 12, "cluster.yaml", "devices, links, prices", 150)
    middle = column(2) + STEP_WIDTH / 2
    for k in (0, 1):
        out.append(arrow((column(k) + STEP_WIDTH / 2, 56), (column(k) + STEP_WIDTH / 2, STEP_Y)))
    # The planner.
    out.append(box(column(3) - 12, 12, 150, 44, "step"))
    out += [text(column(3) + 63, 30, "planner", "name"), text(column(3) + 63, 47, "the fastest layout", "small")]
    out.append(arrow((column(2) + 126, 34), (column(3) - 12, 34)))
    out.append(arrow((column(3) + 63, 56), (column(3) + 63, 84), (middle, 84), (middle, STEP_Y)))
    out.append(text(column(3) + 56, 78, "plan.json", "file", "end"))
    out += file(column(4) + 2, 12, "report.html", "why this one, what if", 154)
    out.append(arrow((column(3) + 138, 34), (column(4) + 2, 34)))
    # The five functions.
    for k, (name, room, lines) in enumerate(STEPS):
        x, center = column(k), column(k) + STEP_WIDTH / 2
        out.append(box(x, STEP_Y, STEP_WIDTH, STEP_HEIGHT, "step"))
        out += [text(center, STEP_Y + 21, name, "name"), text(center, STEP_Y + 38, room, "file")]
        out += [text(center, STEP_Y + 60 + 15 * i, line, "small") for i, line in enumerate(lines)]
        if k:
            out.append(arrow((x - STEP_GAP, STEP_Y + STEP_HEIGHT / 2), (x, STEP_Y + STEP_HEIGHT / 2)))
    # What comes out.
    low = 262
    bundle = column(4)
    out.append(arrow((bundle + STEP_WIDTH / 2, STEP_Y + STEP_HEIGHT), (bundle + STEP_WIDTH / 2, low)))
    out.append(box(bundle, low, STEP_WIDTH, 76, "box"))
    out += [text(bundle + STEP_WIDTH / 2, low + 22, "bundle", "name"),
            text(bundle + STEP_WIDTH / 2, low + 42, "the rank executable,", "small"),
            text(bundle + STEP_WIDTH / 2, low + 58, "first weights, evidence", "small")]
    ranks = column(2)
    out.append(arrow((bundle, low + 18), (ranks + 202, low + 18)))
    out.append(text(ranks + 292, low + 10, "mpirun · torchrun · srun", "small"))
    for k in range(4):
        out.append(box(ranks + k * 51, low - 6, 45, 44, "rank"))
        out.append(text(ranks + 22 + k * 51, low + 21, f"rank {k}", "small"))
    out.append(text(ranks + 98, low + 54, "runtime: no Python, no compiler", "small"))
    out += file(column(0) + 150, low - 6, "trained.safetensors", "for PyTorch, for ONNX", 172)
    out.append(arrow((ranks, low + 16), (column(0) + 322, low + 16)))
    out.append(box(column(3) - 24, low + 62, 150, 42, "proof"))
    out += [text(column(3) + 51, low + 80, "verify", "name"), text(column(3) + 51, low + 96, "ranks = serial program", "small")]
    out.append(arrow((bundle, low + 66), (bundle - 16, low + 66), (bundle - 16, low + 84), (column(3) + 126, low + 84)))
    out += file(column(0) + 150, low + 61, "certificate.json", "proof, bound by hashes", 172)
    out.append(arrow((column(3) - 24, low + 84), (column(0) + 322, low + 84)))
    return out


write(960, 372, "From model.onnx, train.yaml and cluster.yaml through five functions to a bundle, its ranks and their proof", draw())
