"""Partita beside PyTorch: see `run --help`. Imports nothing large: a child's peak memory counts from its parent's."""
import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ("gpt2", "llama", "bert", "resnet18", "vit", "mlp")
SIDES = ("eager", "compile", "jax")
VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}


class Worker:
    """A PyTorch process that waits for its turn."""

    def __init__(self, args, what, name, folder, log):
        self.what = what
        self.process = subprocess.Popen([sys.executable, f"{HERE}/torch_worker.py", what, name, folder, str(args.threads)], text=True, cwd=HERE,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment(args))

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):  # the exporter talks too
                return json.loads(line)
        sys.exit(f"bench: the PyTorch process '{self.what}' ended; its messages are in log.txt (--keep)")

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def environment(args):
    return {**os.environ, "OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}


def run_rank(args, folder, steps, log):
    """A round of Partita: all steps from the first weights, in a new process."""
    metrics = f"{folder}/metrics.jsonl"
    command = [f"{folder}/bundle/rank", "--data", f"{folder}/data.npz", "--steps", str(steps + 1), "--threads", str(args.threads), "--metrics", metrics, "--quiet"]
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(args))
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bench: {' '.join(command)} left with {process.returncode}")
    lines = [json.loads(line) for line in open(metrics)]
    return {"seconds": [line["seconds"] for line in lines[1:]], "loss": [line["loss"] for line in lines], "peak": usage.ru_maxrss * 1024}


def compile_bundle(args, folder, log):
    begin = time.perf_counter()
    subprocess.run([args.partita, "compile", f"{folder}/model.onnx", "--train", f"{folder}/train.yaml", "-o", f"{folder}/bundle", *args.compile_flags.split()],
                   check=True, stdout=log, stderr=log)
    return time.perf_counter() - begin


def kinds_of_step(args, name, folder, log):
    """Where a step's time goes: the profile's table of kinds, seconds a step."""
    steps = STEPS[name] + 1
    command = [f"{folder}/bundle/rank", "--data", f"{folder}/data.npz", "--steps", str(steps), "--threads", str(args.threads), "--profile", f"{folder}/trace.json"]
    tables = subprocess.run(command, check=True, stdout=log, stderr=subprocess.PIPE, text=True, env=environment(args)).stderr
    rows = itertools.takewhile(bool, (line.split() for line in tables[tables.index("kind of step"):].splitlines()[1:]))
    return {kind: {"seconds": float(seconds) / steps, "calls": int(calls) // steps, "gflops": float(gflops), "gbytes": float(gbytes)}
            for kind, _, seconds, calls, gflops, gbytes in rows}


def measure(args, name, sgemm, folder, log):
    exporter = Worker(args, "export", name, folder, log)
    facts = exporter.answer()
    exporter.end()
    seconds_to_compile = compile_bundle(args, folder, log)
    sides = {side: Worker(args, side, name, folder, log) for side in (SIDES[:1] if args.quick else args.sides.split(","))}
    rounds = {side: [] for side in (*sides, "partita")}
    rates = []
    for turn in range(2 if args.quick else args.rounds):
        rates.append(sgemm.round())
        for side, worker in sides.items():
            rounds[side].append(worker.round())
        rounds["partita"].append(run_rank(args, folder, STEPS[name], log))
        print(f"  {name} round {turn}: " + ", ".join(f"{side} {statistics.median(r[-1]['seconds']):.4g} s" for side, r in rounds.items()), file=sys.stderr)
    for worker in sides.values():
        worker.end()
    result = {"model": name, "flops": facts["flops"], "parameters": facts["parameters"], "compile_seconds": seconds_to_compile,
              "sgemm_torch": statistics.median(r["torch"] for r in rates), "sgemm_onednn": statistics.median(r["onednn"] for r in rates)}
    sustained = max(result["sgemm_torch"], result["sgemm_onednn"])
    for side, all_rounds in rounds.items():
        seconds = statistics.median(s for r in all_rounds for s in r["seconds"])
        result[side] = {"seconds": seconds, "peak_bytes": max(r["peak"] for r in all_rounds), "share_of_sgemm": facts["flops"] / seconds / sustained / 1e9,
                        "first_losses": all_rounds[0]["loss"][:4]}
        if "imports" in all_rounds[0]:
            result[side]["bytes_of_imports"] = all_rounds[0]["imports"]
    others = [side for side in rounds if side != "partita"]
    result["speedup"] = min(result[side]["seconds"] for side in others) / result["partita"]["seconds"]
    result["memory_ratio"] = result["partita"]["peak_bytes"] / min(result[side]["peak_bytes"] for side in others)
    if args.where:
        result["where"] = kinds_of_step(args, name, folder, log)
    result["loss_difference"] = max(abs(a - b) / abs(b) for a, b in zip(result["partita"]["first_losses"], result[others[0]]["first_losses"]))
    return result


STEPS = {}


def read_steps():
    out = subprocess.run([sys.executable, "-c", "import models, json; print(json.dumps({k: [m.steps, m.title] for k, m in models.MODELS.items()}))"], cwd=HERE, check=True,
                         capture_output=True, text=True).stdout
    titles = {}
    for name, (steps, title) in json.loads(out).items():
        STEPS[name], titles[name] = steps, title
    return titles


def machine():
    fields = {}
    for line in open("/proc/cpuinfo"):
        if ":" in line:
            key, value = line.split(":", 1)
            fields.setdefault(key.strip(), value.strip())
    versions = subprocess.run([sys.executable, "-c", "import torch, onnx, json; print(json.dumps({'torch': torch.__version__, 'onnx': onnx.__version__}))"], check=True,
                              capture_output=True, text=True).stdout
    commit = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    return {"cpu": fields.get("model name"), "vendor": VENDORS.get(fields.get("vendor_id"), "other"), "family": fields.get("cpu family"), "model": fields.get("model"), "isa": [f for f in ("avx2", "avx512f", "amx_tile") if f in fields.get("flags", "").split()],
            "cores": os.cpu_count(), "kernel": platform.release(), "commit": commit, **json.loads(versions)}


def table(results):
    lines = ["| model | PyTorch eager | torch.compile | JAX | Partita | speed-up | share of sgemm | peak memory | of the better | compile | losses differ |", "|---|---|---|---|---|---|---|---|---|---|---|"]

    def ms(r, side):
        return f"{1e3 * r[side]['seconds']:.4g} ms" if side in r else "-"

    for r in results:
        p = r["partita"]
        lines.append(f"| {r['model']} | {ms(r, 'eager')} | {ms(r, 'compile')} | {ms(r, 'jax')} | {ms(r, 'partita')} | {r['speedup']:.2f} | {100 * p['share_of_sgemm']:.0f} % | "
                     f"{p['peak_bytes'] / 2**20:.0f} MiB | {r['memory_ratio']:.2f} | {r['compile_seconds']:.1f} s | {r['loss_difference']:.0e} |")
    return "\n".join(lines)


def where_table(results):
    lines = ["| model | kind of step | share | ms a step | steps | GFLOP/s | GB/s |", "|---|---|---|---|---|---|---|"]
    for r in results:
        total = sum(k["seconds"] for k in r["where"].values())
        for kind, k in r["where"].items():
            lines.append(f"| {r['model']} | {kind} | {100 * k['seconds'] / total:.1f} % | {1e3 * k['seconds']:.4g} | {k['calls']} | {k['gflops']:.0f} | {k['gbytes']:.1f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/run", description="Trains the same models, weights and batches with PyTorch (eager and torch.compile), JAX and Partita, one at a "
                                     "time, in turns, and compares medians of a step. Speed-up: the best of the others' times over Partita's.")
    parser.add_argument("--partita", default=f"{HERE}/../../build/release/tools/partita")
    parser.add_argument("--only", default=",".join(NAMES), help="models, with commas: " + ", ".join(NAMES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds, without torch.compile; nothing is written to results/")
    parser.add_argument("--where", action="store_true", help="a second table: where a step's time goes, by kinds of steps")
    parser.add_argument("--sides", default=",".join(SIDES), help="what Partita is compared with, with commas: " + ", ".join(SIDES))
    parser.add_argument("--compile-flags", default="", help="more flags for `partita compile`")
    parser.add_argument("--onednn", default=f"{os.environ.get('PARTITA_DEPS', os.path.expanduser('~/.cache/partita/deps'))}/lib/libdnnl.so.3", help="library whose sgemm is measured too")
    parser.add_argument("--keep", help="folder for models, data and bundles, kept afterwards")
    args = parser.parse_args()
    chosen = args.only.split(",")
    for what, said, known in (("model", chosen, NAMES), ("side", args.sides.split(","), SIDES)):
        unknown = [n for n in said if n not in known]
        if unknown:
            parser.error(f"unknown {what} {unknown[0]!r}; there are {', '.join(known)}")
    titles = read_steps()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        root = os.path.abspath(args.keep) if args.keep else scratch
        os.makedirs(root, exist_ok=True)
        with open(f"{root}/log.txt", "w") as log:
            sgemm = Worker(args, "sgemm", args.onednn, "-", log)
            for name in chosen:
                os.makedirs(f"{root}/{name}", exist_ok=True)
                print(titles[name], file=sys.stderr)
                results.append(measure(args, name, sgemm, f"{root}/{name}", log))
            sgemm.end()
    about = machine()
    print(f"{about['cpu']}, {args.threads} threads, PyTorch {about['torch']}, sustained sgemm {statistics.median(max(r['sgemm_torch'], r['sgemm_onednn']) for r in results):.0f} GF/s, commit {about['commit']}")
    print(table(results))
    if args.where:
        print(where_table(results))
    if not args.quick:
        os.makedirs(f"{HERE}/results", exist_ok=True)
        path = f"{HERE}/results/{'-'.join(chosen) if len(chosen) < len(NAMES) else 'all'}-{about['vendor']}.json"
        with open(path, "w") as out:
            json.dump({"machine": about, "threads": args.threads, "titles": {n: titles[n] for n in chosen}, "results": results}, out, indent=1)
            out.write("\n")
        print(f"written: {os.path.relpath(path)}", file=sys.stderr)


if __name__ == "__main__":
    main()
