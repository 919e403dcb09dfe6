"""The search's speed, and its plans beside published layouts: see `plans --help`."""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

LLAMA = "--gated-mlp --no-bias --no-tied --norm rmsnorm --positions rotary"
MODELS = {  # flags of `partita model`
    "GPT-3 175B": "gpt --layers 96 --hidden 12288 --heads 96 --vocab 51200 --seq 2048",
    "1,024 layers": "gpt --layers 1024 --hidden 4096 --heads 32 --vocab 51200 --seq 2048",
    "Llama 7B": f"gpt --layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000 --seq 2048 {LLAMA}",
    "Llama 8B": f"gpt --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256 --seq 8192 {LLAMA}",
    "Llama 405B": f"gpt --layers 126 --hidden 16384 --heads 128 --kv-heads 8 --ffn 53248 --vocab 128256 --seq 8192 {LLAMA}",
    "Mixtral 8x7B": f"moe --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --experts 8 --top-k 2 --moe-ffn 14336 --vocab 32000 --seq 4096 {LLAMA}",
    "ResNet-50": "resnet --depth 50",
}
RECIPE = "optimizer: {kind: adamw, lr: 1.0e-4}\nprecision: bf16\n"
RESNET = "loss: {kind: cross_entropy, output: logits, target: target}\noptimizer: {kind: momentum, lr: 0.1}\nprecision: fp16\nsemantics: {batch_norm: replica}\n"
# Published runs drop no token and weigh the router's load by micro-batch: as many places as tokens choose, for the samples
# that the ranks of an expert axis of 8 compute at once.
MIXTRAL = RECIPE + "semantics: {moe: {capacity_factor: 1, group: 8}}\n"
RECIPES = {"ResNet-50": RESNET, "Mixtral 8x7B": MIXTRAL}
A100 = "nodes: {nodes}\ndevices_per_node: 8\ndevice: A100-80GB\nlinks: [{{kind: nvlink3, group: 8}}, {{kind: infiniband, bandwidth: 25.0e+9}}]\n"
H100 = "preset: dgx-h100\nnodes: {nodes}\n"

# model, devices, samples of a step, seconds
SPEED = [("Llama 8B", 64, 512, 5), ("Llama 405B", 4096, 2048, 30), ("1,024 layers", 256, 512, 30)]
SWEEP = ("Llama 8B", "8..1024", 1024, 60)  # eight sizes
IMPORT_SECONDS, MEMORY_BYTES = 2, 4e9  # of the 405B graph; of any search

# What the layouts' authors do not say is pinned to what their software did by default.
EACH = "micro_batch=1 context=1 expert=1 "
PUBLISHED = [
    # Narayanan et al. 2021 (tensor 8 in a node, full recompute); Korthikanti et al. 2022 (sequence parallel, selective).
    ("GPT-3 175B", A100.format(nodes=128), 1536, {
        "2021, pipeline 8": EACH + "data=16 tensor=8 pipeline=8 zero=0 sequence_parallel=false recompute=full schedule=1f1b",
        "2021, pipeline 16": EACH + "data=8 tensor=8 pipeline=16 zero=0 sequence_parallel=false recompute=full schedule=1f1b",
        "2021, pipeline 16, interleaved": EACH + "data=8 tensor=8 pipeline=16 zero=0 sequence_parallel=false recompute=full schedule=interleaved interleave=3",
        "2022, pipeline 8, interleaved": EACH + "data=16 tensor=8 pipeline=8 zero=0 sequence_parallel=true recompute=selective schedule=interleaved interleave=3",
        "2022, ZeRO-1 beside it": EACH + "data=16 tensor=8 pipeline=8 zero=1 sequence_parallel=true recompute=selective schedule=interleaved interleave=3",
    }),
    # The Llama 3 Herd of Models, table 4: TP 8, CP 1, PP 16, DP 128; 2,048 samples of 8,192 tokens.
    ("Llama 405B", H100.format(nodes=2048), 2048, {
        f"TP8 PP16 DP128, ZeRO-{zero}, interleave {v}": EACH + f"data=128 tensor=8 pipeline=16 zero={zero} sequence_parallel=true recompute=none " +
        ("schedule=1f1b" if v == 1 else f"schedule=interleaved interleave={v}") for zero, v in itertools.product((1, 2), (1, 2, 4, 7))
    }),
    # NeMo's recipe (PP 4, EP 8, virtual stages 8), and Megatron-Core's tables with TP 2.
    ("Mixtral 8x7B", H100.format(nodes=32), 1024, {
        "PP4 EP8, interleave 8": "micro_batch=1 context=1 data=8 tensor=1 pipeline=4 expert=8 zero=1 sequence_parallel=false recompute=none schedule=interleaved interleave=8",
        "PP4 EP8": "micro_batch=1 context=1 data=8 tensor=1 pipeline=4 expert=8 zero=1 sequence_parallel=false recompute=none schedule=1f1b",
        "TP2 PP4 EP4": "micro_batch=2 context=1 data=8 tensor=2 pipeline=4 expert=4 zero=1 sequence_parallel=true recompute=none schedule=1f1b",
        "TP2 EP8": "micro_batch=1 context=1 data=16 tensor=2 pipeline=1 expert=8 zero=1 sequence_parallel=true recompute=none",
    }),
    # NeMo's recipe (CP 2), and fully sharded data parallelism.
    *(("Llama 8B", H100.format(nodes=nodes), 128 * nodes, {
        "CP2, ZeRO-1": f"micro_batch=1 data={4 * nodes} context=2 tensor=1 pipeline=1 zero=1 recompute=none",
        "FSDP": f"micro_batch=1 data={8 * nodes} context=1 tensor=1 pipeline=1 zero=3 recompute=none",
        "FSDP, recompute": f"micro_batch=1 data={8 * nodes} context=1 tensor=1 pipeline=1 zero=3 recompute=full",
    }) for nodes in (1, 8)),
    # DeepSpeed's advice for cards of 24 GB.
    ("Llama 7B", "preset: rtx-4090-box\nnodes: 1\n", 64, {
        f"ZeRO-{zero}, offload {what}": f"micro_batch={micro} data=4 tensor=1 pipeline=1 context=1 zero={zero} offload={what} recompute=full"
        for zero, what, micro in ((2, "optimizer", 1), (2, "optimizer", 4), (3, "optimizer", 4), (3, "all", 1), (3, "all", 4))
    }),
    # NVIDIA's DeepLearningExamples: 256 images a card.
    ("ResNet-50", "nodes: 1\ndevices_per_node: 8\ndevice: V100-32GB\n", 2048, {"DDP": "micro_batch=256 data=8 tensor=1 pipeline=1 zero=0"}),
]


class Bench:
    def __init__(self, partita, folder):
        self.partita, self.folder, self.files = partita, folder, {}

    def call(self, *command):
        """(wall seconds, processor seconds, peak bytes) of a command; its exit code must be 0."""
        log = f"{self.folder}/log.txt"
        started = time.perf_counter()
        with open(log, "w") as out:
            process = subprocess.Popen([self.partita, *command], stdout=out, stderr=out)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"plans: {' '.join(command)} left with {process.returncode}:\n{open(log).read()[-2000:]}")
        return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024

    def model(self, name):
        if name not in self.files:
            self.files[name] = f"{self.folder}/{len(self.files)}.onnx"
            self.call("model", *MODELS[name].split(), "-o", self.files[name], "--quiet")
        return self.files[name]

    def task(self, name, cluster, batch, lines=""):
        """The arguments that every command takes; `lines` of the recipe."""
        recipe = RECIPES.get(name, RECIPE) + f"batch: {{global: {batch}}}\n{lines}"
        open(f"{self.folder}/train.yaml", "w").write(recipe)
        open(f"{self.folder}/cluster.yaml", "w").write(cluster)
        return [self.model(name), "--train", f"{self.folder}/train.yaml", "--cluster", f"{self.folder}/cluster.yaml"]

    def plan(self, task, pins=""):
        file = f"{self.folder}/plan.json"
        used = self.call("plan", *task, "--quiet", "--allow-infeasible", "-o", file, *(f"--pin={pin}" for pin in pins.split()))
        return json.load(open(file)), used


def speed(bench):
    """Rows (what, seconds, processor seconds, bytes, limit). A machine that has other work shows in the first and not in the second."""
    rows = []
    for name, devices, batch, limit in SPEED:
        _, used = bench.plan(bench.task(name, H100.format(nodes=devices // 8), batch))
        rows.append((f"{name} on {devices}: search", *used, limit))
    name, sizes, batch, limit = SWEEP
    used = bench.call("sweep", *bench.task(name, H100.format(nodes=128), batch), "--devices", sizes)
    rows.append((f"{name} on {sizes}: sweep", *used, limit))
    # All choices pinned: what is left is reading and analysing the graph.
    used = bench.plan(bench.task("Llama 405B", H100.format(nodes=512), 2048), EACH + "data=64 tensor=8 pipeline=8 zero=1 sequence_parallel=true recompute=none schedule=1f1b")[1]
    rows.append(("Llama 405B: import, analysis and one layout", *used, IMPORT_SECONDS))
    return rows


def published(bench):
    """The searched plan of each task, and all published layouts, those too that the cost model takes for too large."""
    rows = []
    for name, cluster, batch, layouts in PUBLISHED:
        task = bench.task(name, cluster, batch)
        plan, used = bench.plan(task)
        found = {what: bench.plan(task, pins)[0]["predicted"] for what, pins in layouts.items()}
        best = min(found, key=lambda what: found[what]["step_seconds"])
        rows.append({"model": name, "devices": plan["devices"], "searched": plan["layout"], "step_seconds": plan["predicted"]["step_seconds"], "search_seconds": used[0],
                     "best_published": best, "published_seconds": found[best]["step_seconds"], "published": {what: [p["step_seconds"], p["fits"]] for what, p in found.items()}})
    return rows


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(prog="plans", description="Times the search against its limits, and holds its plans against published layouts by the same cost model. Leaves with code 1 "
                                     "where a limit is passed (in processor seconds, which other programs do not change) or a published layout is faster than the plan.")
    parser.add_argument("--partita", default=f"{here}/../../build/release/tools/partita")
    parser.add_argument("--only", default="speed,published", help="%(default)s")
    parser.add_argument("--output", help="JSON to write")
    args = parser.parse_args()
    result, missed = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(os.path.abspath(args.partita), folder)
        if "speed" in args.only:
            result["speed"] = speed(bench)
            print(f"{'':<46}{'seconds':>9}{'cpu':>8}{'limit':>7}{'MB':>7}")
            for what, wall, cpu, peak, limit in result["speed"]:
                bad = cpu > limit or peak > MEMORY_BYTES
                missed += bad
                print(f"{what:<46}{wall:>9.2f}{cpu:>8.2f}{limit:>7}{peak / 1e6:>7.0f}{'  missed' if bad else ''}")
        if "published" in args.only:
            result["published"] = published(bench)
            for r in result["published"]:
                bad = r["step_seconds"] > r["published_seconds"] * (1 + 1e-9)
                missed += bad
                print(f"{r['model']} on {r['devices']}: {r['step_seconds']:.4g} s a step with {r['searched']}")
                print(f"    best published: {r['best_published']} {r['published_seconds']:.4g} s{'  missed' if bad else ''};  all: " +
                      ", ".join(f"{what} {s:.4g} s{'' if fits else ' (does not fit)'}" for what, (s, fits) in r["published"].items()))
    if args.output:
        with open(args.output, "w") as file:
            json.dump({"load": os.getloadavg(), "cores": os.cpu_count(), **result}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
