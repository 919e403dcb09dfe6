"""Networks without repeated layers in little memory, by Partita and by PyTorch's checkpoint(): see `recompute --help`."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import bench

HERE = bench.HERE
LEARNING_RATE = 0.01
CLUSTER = "nodes: 1\ndevices_per_node: 1\ndevice: {{like: cpu, memory: {memory:.0f}, reserve: 0}}\nlinks: [{{kind: ethernet, bandwidth: 1.0e9}}]\n"


def modules():
    """By name: the network as a list of functions of torch, each of which is one checkpoint()."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    import models

    class Part(nn.Module):
        """Keeps what enters it alone, if asked to."""

        def __init__(self, *layers):
            super().__init__()
            self.layers, self.again = nn.Sequential(*layers), False

        def forward(self, x):
            return checkpoint(self.layers, x, use_reentrant=False) if self.again else self.layers(x)

    def twice(inputs, outputs):
        return [layer for width in (inputs, outputs) for layer in (nn.Conv2d(width, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU())]

    class Unet(nn.Module):
        def __init__(self, widths=(32, 64, 128, 256)):
            super().__init__()
            self.down = nn.ModuleList(Part(*twice(a, b)) for a, b in zip((3, *widths), widths))
            self.middle = Part(*twice(widths[-1], 2 * widths[-1]))
            self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
            self.up = nn.ModuleList(Part(*twice(2 * w, w)) for w in reversed(widths))
            self.out = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x):
            kept = []
            for down in self.down:
                x = down(x)
                kept.append(x)
                x = F.max_pool2d(x, 2)
            x = self.middle(x)
            for wider, up in zip(self.wider, self.up):
                x = up(torch.cat((kept.pop(), wider(x)), dim=1))
            return self.out(x)

    class Dense(nn.Module):
        """A DenseNet: each layer reads all before it."""

        def __init__(self, layers=(6, 8, 6), growth=16, classes=10):
            super().__init__()
            self.first, width, stages = nn.Conv2d(3, 2 * growth, 3, padding=1), 2 * growth, []
            for count in layers:
                stage = nn.ModuleList()
                for _ in range(count):
                    stage.append(Part(nn.GroupNorm(8, width), nn.ReLU(), nn.Conv2d(width, 4 * growth, 1), nn.GroupNorm(8, 4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1)))
                    width += growth
                stage.append(nn.Sequential(nn.Conv2d(width, width // 2 // 8 * 8, 1), nn.AvgPool2d(2)))
                width = width // 2 // 8 * 8
                stages.append(stage)
            self.stages, self.head = nn.ModuleList(stages), nn.Linear(width, classes)

        def forward(self, x):
            x = self.first(x)
            for *layers, narrower in self.stages:
                for layer in layers:
                    x = torch.cat((x, layer(x)), dim=1)
                x = narrower(x)
            return self.head(x.mean(dim=(2, 3)))

    class Residual(nn.Module):
        """ResNet-18 whose residual blocks are parts."""

        def __init__(self):
            super().__init__()
            self.net = models.Resnet18(classes=10)
            self.net.layers = nn.Sequential(*(Part(block) for block in self.net.layers))

        def forward(self, x):
            return self.net(x)

    return {"unet": Unet, "densenet": Dense, "resnet18": Residual}, Part


# Title, samples of a step, a side of the image, loss.
CASES = {
    "unet": ("U-Net, 32 to 512 channels, 96x96", 8, 96, "mse"),
    "densenet": ("DenseNet of 20 layers, 64x64", 16, 64, "cross_entropy"),
    "resnet18": ("ResNet-18, 96x96", 32, 96, "cross_entropy"),
}


def worker(what, name, folder, threads, steps):
    """In a process of its own: writes the model and its data, or trains with PyTorch and prints times and memory."""
    import numpy as np
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    makes, part = modules()
    _, batch, side, loss = CASES[name]
    torch.manual_seed(0)
    net = makes[name]().train()
    if what == "export":
        random = np.random.default_rng(0)
        x = random.standard_normal((batch * (steps + 1), 3, side, side), dtype=np.float32)
        target = random.standard_normal((len(x), 2, side, side), dtype=np.float32) if loss == "mse" else random.integers(0, 10, len(x))
        np.savez(f"{folder}/data.npz", x=x, target=target)
        open(f"{folder}/train.yaml", "w").write(f"loss: {{kind: {loss}, output: y, target: target}}\noptimizer: {{kind: sgd, lr: {LEARNING_RATE}}}\nbatch: {{global: {batch}}}\n")
        torch.onnx.export(net, (torch.from_numpy(x[:batch]),), f"{folder}/model.onnx", input_names=["x"], output_names=["y"], opset_version=17, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        return
    for module in net.modules():
        if isinstance(module, part):
            module.again = what == "checkpoint"
    data = np.load(f"{folder}/data.npz")
    x, target = torch.from_numpy(data["x"]), torch.from_numpy(data["target"])
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    before, times, losses = peak_bytes(), [], []
    for step in range(steps + 1):
        rows = slice(step * batch, (step + 1) * batch)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        value = (F.mse_loss if loss == "mse" else F.cross_entropy)(net(x[rows]), target[rows])
        value.backward()
        optimizer.step()
        losses.append(value.item())
        times.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": times[1:], "loss": losses, "bytes": peak_bytes() - before}))


def peak_bytes():
    return int(dict(line.split(":", 1) for line in open("/proc/self/status"))["VmHWM"].split()[0]) * 1024


def torch_round(args, what, name, folder):
    done = subprocess.run([sys.executable, __file__, "--worker", what, "--only", name, "--folder", folder, "--threads", str(args.threads), "--steps", str(args.steps)],
                          capture_output=True, text=True, cwd=HERE, env=bench.environment(args))
    if done.returncode:
        sys.exit(f"recompute: {what} of {name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]) if what != "export" else None


def planned(args, folder, side, memory, pins):
    """A bundle of the plan for a device with so much memory; the plan, or None where none fits."""
    at = f"{folder}/{side}"
    os.makedirs(at)
    open(f"{at}/cluster.yaml", "w").write(CLUSTER.format(memory=memory))
    task = [f"{folder}/model.onnx", "--train", f"{folder}/train.yaml"]
    done = subprocess.run([args.partita, "plan", *task, "--cluster", f"{at}/cluster.yaml", "--quiet", "-o", f"{at}/plan.json", *(f"--pin={p}" for p in pins)], capture_output=True, text=True)
    if done.returncode == 3:
        return None
    if done.returncode == 0:
        done = subprocess.run([args.partita, "compile", *task, "--plan", f"{at}/plan.json", "--quiet", "-o", f"{at}/bundle"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"recompute: {side}: {done.stderr[-2000:]}")
    os.symlink(f"{folder}/data.npz", f"{at}/data.npz")
    return json.load(open(f"{at}/plan.json"))


def median(rounds):
    return statistics.median(s for r in rounds for s in r["seconds"])


def measure(args, name, folder, log):
    title, batch, _, _ = CASES[name]
    print(title, file=sys.stderr)
    torch_round(args, "export", name, folder)
    alone = [f"micro_batch={batch}"]  # with smaller ones less memory is no riddle
    plans = {"kept": planned(args, folder, "kept", 1e12, [*alone, "recompute=none"]), "full": planned(args, folder, "full", 1e12, [*alone, "recompute=full"])}
    most, least = (plans[side]["predicted"]["program_bytes"][0] for side in ("kept", "full"))
    for share in args.shares:
        memory = least + share * (most - least)
        plans[f"{share:.0%} of the way"] = planned(args, folder, f"share{share}", memory, alone)
    folders = {"kept": "kept", "full": "full", **{f"{share:.0%} of the way": f"share{share}" for share in args.shares}}
    plans = {side: plan for side, plan in plans.items() if plan}
    rounds = {side: [] for side in ("eager", "checkpoint", *plans)}
    bench.STEPS[name] = args.steps
    for _ in range(args.rounds):
        for side, runs in rounds.items():
            runs.append(torch_round(args, side, name, folder) if side in ("eager", "checkpoint") else bench.run_rank(args, f"{folder}/{folders[side]}", args.steps, log))
    row = {"model": name, "title": title, "sides": {}}
    for side, runs in rounds.items():
        result = {"seconds": median(runs), "losses": runs[0]["loss"]}
        if side in plans:
            result.update(bytes=plans[side]["predicted"]["program_bytes"][0], predicted=plans[side]["predicted"]["step_seconds"], recompute={k: v for k, v in plans[side]["pin"].items() if "recompute" in k})
        else:
            result["bytes"] = max(r["bytes"] for r in runs)
        row["sides"][side] = result
    reference = row["sides"]["eager"]["losses"]
    row["loss_difference"] = max(abs(a - b) / abs(b) for side in row["sides"].values() for a, b in zip(side["losses"], reference))
    return row


def table(rows):
    lines = ["| model | side | step | of all kept | memory | of all kept | predicted step |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        for side, r in row["sides"].items():
            kept = row["sides"]["eager" if side in ("eager", "checkpoint") else "kept"]
            predicted = f"{r['predicted'] / row['sides']['kept']['predicted']:.2f}" if "predicted" in r else ""
            lines.append(f"| {row['model']} | {side} | {1e3 * r['seconds']:.0f} ms | {r['seconds'] / kept['seconds']:.2f} | {r['bytes'] / 1e6:.0f} MB | {r['bytes'] / kept['bytes']:.2f} | {predicted} |")
        lines.append(f"| {row['model']} | losses differ by at most | | | | | {row['loss_difference']:.0e} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/recompute", description="Trains networks without repeated layers: PyTorch with all activations and with checkpoint() around each of its parts, "
                                     "Partita with all of them, with `recompute: full`, and by plans for memory in between, in turns over the same samples. Memory: of PyTorch the growth of the "
                                     "process, of Partita what its program allocates; both with parameters and gradients.")
    parser.add_argument("--partita", default=f"{HERE}/../../build/release/tools/partita")
    parser.add_argument("--only", default=",".join(CASES), help="models, with commas: " + ", ".join(CASES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a round")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.25, 0.5, 0.75], help="memory of planned programs, between that of `full` and that of all")
    parser.add_argument("--output", help="JSON to write")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, args.only, args.folder, args.threads, args.steps)
    args.partita = os.path.abspath(args.partita)
    rows = []
    with tempfile.TemporaryDirectory() as root, open(f"{root}/log.txt", "w") as log:
        for name in args.only.split(","):
            os.makedirs(f"{root}/{name}")
            rows.append(measure(args, name, f"{root}/{name}", log))
    print(table(rows))
    if args.output:
        with open(args.output, "w") as out:
            json.dump({"machine": bench.machine(), "threads": args.threads, "results": rows}, out, indent=1)
            out.write("\n")


if __name__ == "__main__":
    main()
