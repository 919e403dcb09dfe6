"""Predicted beside measured training steps of CPU ranks: see `layouts --help`."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

RECIPE = "optimizer: {{kind: adamw, lr: 0.0003}}\nbatch: {{global: {batch}}}\ndata: {{kind: synthetic}}\n{loss}"
LOGITS = "loss: {kind: cross_entropy, output: logits, target: target}\n"

# name: flags of `partita model`, global batch, loss in the recipe, [(ranks, pins)]
MODELS = {
    "gpt2": ("gpt --layers 4 --hidden 512 --heads 8 --vocab 8192 --seq 256", 8, "", [
        (1, ""), (1, "micro_batch=2"), (1, "recompute=full"),
        (2, "data=2"), (2, "data=2 zero=1"), (2, "data=2 zero=3"), (2, "tensor=2"), (2, "context=2"),
        (2, "pipeline=2 micro_batch=1 schedule=1f1b"), (2, "pipeline=2 micro_batch=2 schedule=gpipe"),
        (4, "data=4"), (4, "data=2 tensor=2"),
    ]),
    "llama": ("gpt --layers 4 --hidden 512 --heads 8 --kv-heads 4 --vocab 8192 --seq 256 --gated-mlp --no-bias --no-tied --norm rmsnorm --positions rotary", 8, "", [
        (1, ""), (2, "data=2 zero=2"), (2, "tensor=2"), (2, "data=2 recompute=full"), (2, "pipeline=2 micro_batch=1 schedule=zero_bubble"), (4, "data=4 zero=3"),
    ]),
    "resnet18": ("resnet --depth 18 --classes 100 --image 64", 32, LOGITS, [
        (1, ""), (2, "data=2"), (2, "data=2 zero=1"), (4, "data=4"),
    ]),
}


class Row:
    """A layout of a model: what is predicted, its bundle, and the seconds of its steps."""

    def __init__(self, model, ranks, pins, searched=False):
        self.model, self.ranks, self.pins, self.searched = model, ranks, pins, searched
        self.seconds, self.cpu = [], []
        self.same = None  # the row with the same plan, whose measurements it has


def call(command, log, **more):
    result = subprocess.run(command, stdout=log, stderr=log, **more)
    if result.returncode:
        log.flush()
        sys.exit(f"layouts: {' '.join(command)} left with {result.returncode}:\n{open(log.name).read()[-2000:]}")


def prepare(args, folder, row, log):
    """Plans the layout and compiles the plan."""
    row.folder = f"{folder}/{row.model}-{row.ranks}-{row.pins.replace(' ', '-')}{'searched' if row.searched else ''}"
    os.makedirs(row.folder)
    cluster, plan = f"{folder}/cluster-{row.ranks}.yaml", f"{row.folder}/plan.json"
    model = [f"{folder}/{row.model}.onnx", "--train", f"{folder}/{row.model}.yaml"]
    pins = dict(pin.split("=") for pin in row.pins.split())
    if not row.searched:  # what is not said is the plain choice
        batch, replicas = MODELS[row.model][1], int(pins.get("data", 1))
        plain = {"tensor": 1, "context": 1, "pipeline": 1, "data": 1, "zero": 0, "recompute": "none", "micro_batch": batch // replicas, "sequence_parallel": "false"}
        pins = {**plain, **pins}
    call([args.partita, "plan", *model, "--cluster", cluster, "--profiles", args.profiles, "--quiet", "-o", plan, *(f"--pin={k}={v}" for k, v in pins.items())], log)
    row.plan = json.load(open(plan))
    row.predicted = row.plan["predicted"]["step_seconds"]
    call([args.partita, "compile", *model, "--plan", plan, "-o", f"{row.folder}/bundle"], log)


def share_measurements(rows):
    """A searched plan that is one of the pinned layouts is measured once: two measurements of one program differ by noise alone."""
    for row in rows:
        if row.searched:
            row.same = next((r for r in rows if not r.searched and (r.model, r.ranks, r.plan["pin"]) == (row.model, row.ranks, row.plan["pin"])), None)
        if row.same:
            row.seconds, row.cpu = row.same.seconds, row.same.cpu


def run(args, row, log):
    """One round of steps in a new process; the first prepares kernels and does not count."""
    metrics = f"{row.folder}/metrics.jsonl"
    command = [args.partita, "run", f"{row.folder}/bundle", "--steps", str(args.steps + 1), "--metrics", metrics, "--quiet"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"layouts: {' '.join(command)} left with {process.returncode}")
    row.seconds += [json.loads(line)["seconds"] for line in open(metrics)][1:]
    row.cpu.append((usage.ru_utime + usage.ru_stime) / (args.steps + 1))


def table(rows):
    print(f"{'model':<10}{'ranks':>6}  {'layout':<42}{'measured ms':>12}{'predicted ms':>13}{'error':>8}{'spread':>8}{'cpu ms':>9}")
    for r in rows:
        spread = statistics.median(r.seconds) / min(r.seconds) - 1
        print(f"{r.model:<10}{r.ranks:>6}  {'searched' if r.searched else r.pins or 'plain':<42}{r.measured * 1e3:>12.1f}{r.predicted * 1e3:>13.1f}{r.predicted / r.measured - 1:>8.1%}{spread:>8.0%}"
              f"{statistics.median(r.cpu) * 1e3:>9.0f}")


def verdicts(rows):
    """The searched plan's measured time over the best measured one's, by model and ranks."""
    out = []
    for key in sorted({(r.model, r.ranks) for r in rows if r.searched}):
        here = [r for r in rows if (r.model, r.ranks) == key]
        found = next(r for r in here if r.searched)
        best = min([found] + here, key=lambda r: r.measured)
        out.append({"model": key[0], "ranks": key[1], "searched_over_best": found.measured / best.measured, "best": "searched" if best.searched else best.pins or "plain",
                    "searched": found.plan["layout"]})
    return out


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(prog="layouts", description="Trains models in some 20 layouts on 1 to 4 ranks of this machine, and holds the measured steps against what `partita plan` predicts "
                                     "from a measured profile. Wants a quiet machine.")
    parser.add_argument("--partita", default=f"{here}/../../build/release/tools/partita")
    parser.add_argument("--profiles", help="what `partita doctor --calibrate` wrote; default: calibrate first")
    parser.add_argument("--only", default=",".join(MODELS), help="models: %(default)s")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="of each round")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds of measuring: ends with the last round that is done by then")
    parser.add_argument("--no-searched", action="store_true", help="leave out the layouts that the search finds")
    parser.add_argument("--output", help="JSON to write")
    args = parser.parse_args()
    args.partita = os.path.abspath(args.partita)
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log.txt", "w+") as log:
        rows = []
        for name in args.only.split(","):
            flags, batch, loss, layouts = MODELS[name]
            call([args.partita, "model", *flags.split(), "-o", f"{folder}/{name}.onnx", "--with-weights", "--quiet"], log)
            open(f"{folder}/{name}.yaml", "w").write(RECIPE.format(batch=batch, loss=loss))
            rows += [Row(name, ranks, pins) for ranks, pins in layouts]
            if not args.no_searched:
                rows += [Row(name, ranks, "", searched=True) for ranks in sorted({ranks for ranks, _ in layouts})]
        ranks = sorted({r.ranks for r in rows})
        for n in ranks:
            open(f"{folder}/cluster-{n}.yaml", "w").write(f"preset: local-{n}\n")
        if not args.profiles:
            args.profiles = f"{folder}/local.yaml"
            call([args.partita, "doctor", "--calibrate", args.profiles, "--ranks", ",".join(map(str, ranks))], log)
        for row in rows:
            prepare(args, folder, row, log)
        share_measurements(rows)
        started = time.perf_counter()
        for turn in range(args.rounds):
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
            for row in rows:
                if not row.same:
                    run(args, row, log)
            if time.perf_counter() - started > args.time_limit * (turn + 1) / (turn + 2):  # the next one would pass it
                break
        for row in rows:
            row.measured = statistics.median(row.seconds)
        pinned = [r for r in rows if not r.searched]
        mape = statistics.mean(abs(r.predicted / r.measured - 1) for r in pinned)
        table(rows)
        found = verdicts(rows)
        print(f"mape {mape:.1%} over {len(pinned)} pinned layouts; load {os.getloadavg()[0]:.1f} at the end")
        for v in found:
            print(f"{v['model']} on {v['ranks']}: the searched plan takes {v['searched_over_best']:.3f} of the best measured step ({v['best']})")
        if args.output:
            result = {"mape": mape, "load": os.getloadavg(), "cores": os.cpu_count(), "profile": open(args.profiles).read(), "searched": found,
                      "rows": [{"model": r.model, "ranks": r.ranks, "pins": r.pins, "searched": r.searched, "measured_seconds": r.measured, "fastest_seconds": min(r.seconds),
                                "predicted_seconds": r.predicted, "error": r.predicted / r.measured - 1, "cpu_seconds": statistics.median(r.cpu), "breakdown": r.plan["predicted"]["breakdown"]}
                               for r in rows]}
            with open(args.output, "w") as file:
                json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
