"""Runs the packed bundles on this machine's GPU: correctness against PyTorch's float64 references, then speed beside the PyTorch that is installed here.

    run [--minutes 10] [-o FILE] [--jobs 3] [--only 'speed .*bf16|correctness fp8']

In the order of what could be wrong: what the GPU reaches in a large product and a large copy; every model, --jobs at once, against its reference; the speed of the bf16 programs, which are judged,
while PyTorch compiles its own beside them; kernels under compute-sanitizer; what is left. Each step stands alone: one that fails is noted with its message and the next one goes on. The JSON is written after
every one of them, so that what was measured survives whatever ends the run, and a FILE that is there already is gone on with: what went well in it is not done again. --only takes the steps whose part and
title the expression fits at their beginning. The last lines say what failed."""
import argparse
import concurrent.futures
import contextlib
import fcntl
import glob
import gzip
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
UNPACKED = tempfile.TemporaryDirectory()  # of lib.tar.xz and bundles.tar.xz
LIB, BUNDLES = f"{UNPACKED.name}/lib", f"{UNPACKED.name}/bundles"
FACTOR, FLOOR = 8, 2e-6  # times PyTorch's own fp32 error; as judge.py's floor
SANITIZED = ("gpt2", "gpt2+bf16", "mixtral+bf16", "resnet")
VENDORS = "nvjet|xmma|cutlass|cudnn|cublas|_Z"  # in the names of kernels that are not ours: looking at them takes minutes
NARROW_FACTOR = 4  # times the distance of PyTorch's autocast: rounding is a matter of chance
# Dense peaks as NVIDIA's data sheets have them: bf16, tf32 and fp32 FLOP/s, and bytes/s of memory. By what is in the device's name, the first that fits.
PEAKS = (("H200", (989e12, 495e12, 67e12, 4.8e12)), ("H100 PCIe", (756e12, 378e12, 51e12, 2.0e12)), ("H100", (989e12, 495e12, 67e12, 3.35e12)), ("A100", (312e12, 156e12, 19.5e12, 2.0e12)), ("B200", (2250e12, 1100e12, 75e12, 8.0e12)))


def ask(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def library_folders():
    """Where this machine has cuBLASLt, cuDNN and NCCL: the toolkit's folders and PyTorch's wheels."""
    folders = [f"{LIB}/partita", "/usr/local/cuda/lib64"]
    for path in sys.path:
        folders += sorted(glob.glob(f"{path}/nvidia/*/lib")) + sorted(glob.glob(f"{path}/torch/lib"))
    return [f for f in folders if os.path.isdir(f)]


def environment(rank=0, ranks=1, port=0):
    """Of a rank. Several share the GPU, so they find the tests' NCCL first."""
    folders = ([f"{LIB}/nccl"] if ranks > 1 else []) + library_folders() + [os.environ.get("LD_LIBRARY_PATH", "")]
    launch = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders).strip(":"), **(launch if ranks > 1 else {})}


def run_ranks(command, ranks, seconds):
    """Runs as many processes as there are ranks; what they wrote. RuntimeError with the last words of the first that fails."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    end = time.time() + max(seconds, 1)
    with tempfile.TemporaryDirectory() as said:
        files = [open(f"{said}/{r}", "w+") for r in range(ranks)]
        processes = [subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, env=environment(r, ranks, port)) for r, f in enumerate(files)]
        try:
            while any(p.poll() is None for p in processes) and time.time() < end:
                time.sleep(0.02)
            codes = [p.poll() for p in processes]
        finally:
            for p in processes:
                p.kill()
                p.wait()
        outputs = [open(f.name, errors="replace").read() for f in files]
    last = lambda r: f"rank {r}: {outputs[r].strip()[-600:]}"
    if None in codes:
        raise RuntimeError("no end in time: " + "; ".join(last(r) for r in range(ranks) if codes[r] is None or codes[r]))
    for rank, code in enumerate(codes):
        if code:
            raise RuntimeError(f"exit {code}: {last(rank)}")
    return outputs


def executable(bundle, folder):
    """The bundle with the runner and its libraries, which all bundles share, in their places."""
    out = f"{folder}/bundle"
    shutil.copytree(bundle, out)
    if not os.path.exists(f"{out}/initial.safetensors") and re.search("[+@%=]", os.path.basename(bundle)):  # the plain one's
        name, rest = re.split("[+@%=]", os.path.basename(bundle), maxsplit=1)
        shutil.copy(f"{BUNDLES}/{name}.{rest.partition('.')[2]}/initial.safetensors", out)
    for path in glob.glob(f"{LIB}/partita/*.so*"):
        os.link(path, f"{out}/lib/{os.path.basename(path)}")
    shutil.copy(f"{LIB}/partita/partita_runner", f"{out}/rank")
    return f"{out}/rank"


def load_safetensors(path):
    raw = open(path, "rb").read()
    size = int.from_bytes(raw[:8], "little")
    types = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "F16": np.float16, "U8": np.uint8, "BOOL": np.bool_}
    out = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__" and entry["dtype"] in types:
            begin, end = (8 + size + x for x in entry["data_offsets"])
            out[name] = np.frombuffer(raw[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return out


def distance(a, b):
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    n = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / n if n else np.linalg.norm(a))


def train(bundle, flags, seconds):
    """Runs a bundle; its metrics, saved arrays and wall time. RuntimeError with its last words."""
    with tempfile.TemporaryDirectory() as folder:
        command = [executable(bundle, folder), *flags, "--metrics", f"{folder}/m.jsonl", "--quiet"]
        files = {"--save": f"{folder}/p.safetensors", "--save-gradients": f"{folder}/g.safetensors"}
        command = [files.get(command[k - 1], c) if k else c for k, c in enumerate(command)]
        begin = time.time()
        run_ranks(command, 2 if "%" in os.path.basename(bundle) else 1, seconds)
        metrics = [json.loads(line) for line in open(f"{folder}/m.jsonl")]
        arrays = {k: load_safetensors(p) if os.path.exists(p) else {} for k, p in files.items()}
        return metrics, arrays, time.time() - begin


def check_collectives(seconds):
    """Every collective of the NCCL back end, three processes on the one GPU."""
    begin = time.time()
    outputs = run_ranks([f"{LIB}/partita_collective_check", "check", "cuda", "60"], 3, seconds)
    bad = [] if all("over nccl" in o for o in outputs) else ["not over NCCL"]
    return {"holds": not bad, "bad": bad, "seconds": time.time() - begin}


def split_title(title):
    """Model, precision and variant of a title such as gpt2_124m+bf16=plain; no precision is fp32."""
    name, _, precision = title.partition("+")
    precision, _, variant = precision.partition("=")
    return name, precision or "fp32", variant


def references(title):
    """Where the model's data and reference lie."""
    return f"{HERE}/references/{re.split('[+@%=]', title)[0]}"


def check_kernels(program, seconds):
    """Kernels of one kind on drawn operands, by a program that prints a line for each case.

    partita_attention_check: our own attention and cuDNN's against the processors', and how long both take.
    partita_fp8_check: fp8 numbers against their definition, and their products against those in bf16.
    """
    begin = time.time()
    command = [f"{LIB}/{program}", str(int(seconds - 5))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1), env=environment())
    cases = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    bad = [f"{c.get('case', '')}: {c.get('error', 'does not hold')}" for c in cases if not c.get("holds")]
    return {"holds": bool(cases) and not bad, "bad": bad, "cases": cases, "seconds": time.time() - begin}


def check(title, bundle, seconds):
    folder = references(title)
    expected = np.load(f"{folder}/expected.npz")
    steps = len(expected["loss"])
    flags = ["--data", f"{folder}/data.npz", "--steps", str(steps), "--save", "", "--save-gradients", ""]
    metrics, arrays, took = train(bundle, flags, seconds)
    again, arrays_again, _ = train(bundle, flags, seconds)
    zero = set(expected["zero_grad"].tolist()) if "zero_grad" in expected.files else set()
    worst, bad = 0.0, []

    def hold(what, found, key, own):
        nonlocal worst
        if found is None or np.shape(found) != np.shape(expected[key]):
            bad.append(f"{what}: missing or of another shape")
            return
        ratio = distance(found, expected[key]) / max(FLOOR, FACTOR * own)
        worst = max(worst, ratio)
        if not ratio <= 1:
            bad.append(f"{what}: {ratio:.3g} of what is allowed")

    hold("loss", [m["loss"] for m in metrics], "loss_f64", distance(expected["loss_f32"], expected["loss_f64"]))
    for key in expected.files:
        kind, _, tensor = key.partition("/")
        if kind in ("grad", "paramN") and tensor not in zero:
            own = float(expected[f"err_f32/{key}"]) if f"err_f32/{key}" in expected.files else 0.0
            hold(key, arrays["--save-gradients" if kind == "grad" else "--save"].get(tensor), key, own)
    same = [m["loss"] for m in metrics] == [m["loss"] for m in again] and all(
        arrays[k].keys() == arrays_again[k].keys() and all(np.array_equal(v, arrays_again[k][n]) for n, v in arrays[k].items()) for k in arrays)
    return {"holds": not bad, "worst": worst, "bad": bad[:10], "same_bits_again": same, "seconds": took}


def check_narrow(title, bundle, seconds):
    """The losses of a 16-bit or tf32 program: as near to float64 as PyTorch's bf16 autocast, and rounded indeed."""
    name, precision, _ = split_title(title)
    folder = references(title)
    exact = np.load(f"{folder}/expected.npz")["loss_f64"]
    flags = ["--data", f"{folder}/data.npz", "--steps", str(len(exact))]
    metrics, _, took = train(bundle, flags, seconds)
    again, _, _ = train(bundle, flags, seconds)
    losses = [m["loss"] for m in metrics]
    error, own = distance(losses, exact), json.load(open(f"{HERE}/autocast.json"))[name]
    bad = [] if error <= NARROW_FACTOR * own else [f"loss: {error:.3g} from float64, PyTorch's autocast {own:.3g}"]
    if not error > 1e-7:
        bad.append("nothing was rounded")
    return {"holds": not bad, "precision": precision, "distance": error, "autocast_distance": own, "bad": bad, "same_bits_again": losses == [m["loss"] for m in again], "seconds": took}


@contextlib.contextmanager
def alone():
    """Nobody else who asks for this lock has the GPU meanwhile."""
    with open(f"{UNPACKED.name}/lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    time.sleep(0.2)  # whoever waits comes before this process again


class TorchSide:
    """PyTorch's steps of the models, two at a time in the background: it compiles beside whatever runs and times its steps alone."""

    def __init__(self, titles):
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.processes = []
        self.futures = {t: self.pool.submit(self.run, *t) for t in titles}

    def run(self, name, precision):
        command = [sys.executable, f"{HERE}/torch_side.py", name, precision, f"{UNPACKED.name}/lock"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        said, fault = process.communicate()
        lines = [line for line in said.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"error": fault[-600:]}

    def modes(self, name, precision, seconds):
        """What PyTorch does in this precision, in each mode that ends in time."""
        try:
            return self.futures[name, precision].result(max(seconds, 1))
        except (KeyError, concurrent.futures.TimeoutError):
            return {"error": "no end in time"}

    def close(self):
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            process.kill()


def used_bytes():
    """Of the GPU's memory, by whoever."""
    used = ask(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]).splitlines()
    return int(used[0]) << 20 if used and used[0].isdigit() else None


def memory(bundle, metrics, idle):
    """What was planned and what was allocated, and what the GPU has in use beside it (context, libraries, communicators) against what plans assume."""
    planned = json.load(open(f"{bundle}/manifest.json"))["memory_bytes"]
    planned = sum(v for k, v in planned.items() if not k.startswith("host_"))
    last = {k: v for m in metrics for k, v in m.items() if v is not None}
    result = {"planned_bytes": planned, "allocated_bytes": last.get("gpu_allocated_bytes"), "scratch_bytes": last.get("gpu_scratch_bytes")}
    result["as_planned"] = 0 <= (result["allocated_bytes"] or 0) - planned < 4096  # but for alignment
    if idle is not None and abs(used_bytes() - idle) < 64 << 20 and "gpu_used_bytes" in last and result["allocated_bytes"] is not None:
        result["reserve_bytes"] = last["gpu_used_bytes"] - idle - result["allocated_bytes"] - last.get("gpu_upload_bytes", 0)
    result["reserve_assumed"] = json.load(open(f"{HERE}/assumed.json"))["reserve"]
    return result


def peaks(device, precision):
    for name, (bf16, tf32, fp32, bandwidth) in PEAKS:
        if name in device:
            return {"bf16": bf16, "tf32": tf32}.get(precision, fp32), bandwidth
    return None


def launches(bundle):
    """Kernels of generated code in a training step, and the launches that they go in."""
    code = json.load(open(f"{bundle}/manifest.json")).get("gpu_code", {})
    return {k: code[k] for k in ("kernel_steps", "launches") if k in code}


def kernel_times(bundle, seconds, peak, trace):
    """Seconds of a step by kind of kernel, and the ten hottest with their share of it and how far they are from the roofline (1: on it), from the GPU's own clock. `trace`: where all of them are kept."""
    steps = 4
    with tempfile.TemporaryDirectory() as folder:
        train(bundle, ["--steps", str(steps), "--profile", f"{folder}/trace.json"], seconds)
        with open(f"{folder}/trace.json", "rb") as file, gzip.open(trace, "wb") as kept:
            shutil.copyfileobj(file, kept)
        events = [e for e in json.load(open(f"{folder}/trace.json"))["traceEvents"] if e["ph"] == "X"]
    events = events[len(events) // 2:]  # the later half of the steps
    kinds, single = {}, {}
    for e in events:
        kinds[e["cat"]] = kinds.get(e["cat"], 0) + e["dur"] * 1e-6 / (steps / 2)
        args = e["args"]
        at = single.setdefault(args["step"], {"kind": e["cat"], "name": e["name"], "onnx": args.get("onnx", ""), "seconds": 0, "flops": args.get("flops", 0), "bytes": args.get("bytes", 0)})
        at["seconds"] += e["dur"] * 1e-6 / (steps / 2)
    hottest = sorted(single.values(), key=lambda s: -s["seconds"])[:10]
    total = sum(kinds.values())
    for s in hottest:
        s["share"] = s["seconds"] / total if total else 0
        least = max(s["flops"] / peak[0], s["bytes"] / peak[1]) if peak else 0
        if least > 0:
            s["roofline_gap"] = s["seconds"] / least
    return {"steps_timed": len(events) / (steps / 2), "flops": sum(s["flops"] for s in single.values()), "seconds_by_kind": dict(sorted(kinds.items(), key=lambda k: -k[1])), "hottest": hottest}


def tuned(bundle, steps, seconds):
    """The same with --tune: the first start times candidates and keeps the choices, the second one reads them."""
    file = f"{UNPACKED.name}/tuned.json"  # of all bundles
    flags = ["--steps", str(steps), "--tune", file]
    first, _, _ = train(bundle, flags, seconds)
    again, _, _ = train(bundle, flags, seconds)
    return {"step_seconds": statistics.median(m["seconds"] for m in again[2:]), "same_bits_again": [m["loss"] for m in first] == [m["loss"] for m in again],
            "products": {name: {k: v for k, v in choice.items() if k != "algorithm"} for name, choice in json.load(open(file))["products"].items()}}


def measure(title, bundle, seconds, device, trace):
    """A title that ends with =plain is of a program without epilogues, one with =activations or =states of one whose activations or half of whose optimizer states wait on the host, to compare."""
    name, precision, variant = split_title(title)
    steps, peak, idle = 12, peaks(device, precision), used_bytes()
    with alone():
        metrics, _, _ = train(bundle, ["--steps", str(steps)], seconds)
    times = [m["seconds"] for m in metrics[2:]]
    result = {"precision": precision, "step_seconds": statistics.median(times), "memory": memory(bundle, metrics, idle), **{k: v for k, v in metrics[-1].items() if k.startswith("gpu_")}, "loss": [m["loss"] for m in metrics]}
    result |= launches(bundle)
    if variant:
        return result
    # The judged precision alone, for the sake of time.
    parts = {"kernels": lambda: kernel_times(bundle, seconds / 4, peak, trace), "tuned": lambda: tuned(bundle, steps, seconds / 4)}
    if name != "gpt2_124m":  # one model for all, for the sake of time
        del parts["tuned"]
    for part, work in parts.items() if precision in ("bf16", "fp8") else ():
        try:
            with alone():
                result[part] = work()
        except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as fault:
            result[part] = {"error": str(fault)}
    if peak and result.get("kernels", {}).get("flops"):
        result["mfu"] = result["kernels"]["flops"] / result["step_seconds"] / peak[0]
    return result


def compare_with_torch(title, result, torch, seconds):
    """Adds what PyTorch takes to what measure() found."""
    name, precision, variant = split_title(title)
    if not result or "error" in result or "torch" in result or variant or precision == "fp8":
        return
    result["torch"] = torch.modes(name, precision, seconds)
    peak_bytes = [m["peak_bytes"] for m in result["torch"].get("modes", {}).values() if "peak_bytes" in m]
    if peak_bytes and result["memory"]["allocated_bytes"]:
        result["memory_beside_torch"] = (result["memory"]["allocated_bytes"] + result["memory"]["scratch_bytes"]) / min(peak_bytes)
    best = min((m["step_seconds"] for m in result["torch"].get("modes", {}).values() if m.get("precision") == precision and "step_seconds" in m), default=None)
    if best:
        result["speed_beside_torch"] = best / result["step_seconds"]
        if "step_seconds" in result.get("tuned", {}):
            result["tuned_beside_torch"] = best / result["tuned"]["step_seconds"]


def sanitized(title, bundle, tool, seconds):
    """Two steps under one of compute-sanitizer's tools: as they are issued, and as a graph."""
    folder, begin = references(title), time.time()
    with tempfile.TemporaryDirectory() as out:
        command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", "--print-limit", "5", "--report-api-errors", "no", "--kernel-name-exclude", f"regex={VENDORS}", executable(bundle, out), "--data", f"{folder}/data.npz", "--steps", "2", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1), env=environment())
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip("= ")]
    return {"holds": done.returncode == 0, "bad": said[-30:] if done.returncode else [], "seconds": time.time() - begin}


class Report:
    """What was found, on disk after every step."""

    def __init__(self, file, head, only):
        self.only, self.file, self.result, self.mutex = re.compile(only), file, {**head, "correctness": {}, "sanitizer": {}, "speed": {}}, threading.Lock()
        if os.path.exists(file):
            before = json.load(open(file))
            if all(before.get(k) == head[k] for k in ("version", "commit", "device")):
                self.result = before

    def step(self, part, title, work, *arguments):
        """Does `work` unless it went well before. An error is what came of it."""
        old = self.result[part].get(title, {})
        if not self.only.match(f"{part} {title}") or old and "error" not in old and old.get("holds", True):
            return
        begin = time.time()
        try:
            found = work(*arguments)
        except subprocess.TimeoutExpired:
            found = {"error": "no end in time"}
        except Exception as fault:  # one model's fault is no other's
            found = {"error": f"{type(fault).__name__}: {fault}"}
        with self.mutex:
            self.result[part][title] = found
            print(f"{time.time() - begin:6.1f} s {part} {title}", json.dumps({k: v for k, v in found.items() if k not in ("loss", "kernels", "cases", "tuned")})[:400], flush=True)
            self.write()

    def write(self):
        with open(self.file + ".partial", "w") as f:
            json.dump(self.result, f, indent=1)
        os.replace(self.file + ".partial", self.file)

    def failures(self):
        return [f"{part} {title}: {r.get('error') or '; '.join(r.get('bad', []))}" for part in ("correctness", "sanitizer", "speed") for title, r in self.result[part].items() if "error" in r or not r.get("holds", True)]


def find_bundles(capability):
    """Of each model, the newest architecture that this device runs."""
    bundles = {}
    for path in sorted(glob.glob(f"{BUNDLES}/*/")):
        name, _, architecture = os.path.basename(path.rstrip("/")).rpartition(".")
        number = int(re.sub(r"\D", "", architecture) or 0)
        if number <= capability and number >= bundles.get(name, (0, ""))[0]:
            bundles[name] = (number, path.rstrip("/"))
    return {name: path for name, (_, path) in bundles.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("-o", "--output", default=f"{HERE}/result.json")
    parser.add_argument("--jobs", type=int, default=3, help="models whose correctness is checked at once: on one GPU they take turns")
    parser.add_argument("--only", default="", help="a regular expression, such as 'speed|correctness fp8': the steps to do")
    args = parser.parse_args()
    end = time.time() + args.minutes * 60 - 15
    left = lambda most: min(end - time.time(), most)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda part: tarfile.open(f"{HERE}/{part}.tar.xz").extractall(UNPACKED.name), ("lib", "bundles")))
    capability = ask(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).splitlines()
    found = int(capability[0].replace(".", "")) if capability else 0
    query = ask(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"])
    report = Report(args.output, {"version": 2, "commit": open(f"{HERE}/commit").read().strip(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": query, "compute_capability": found}, args.only)
    bundles = find_bundles(found)
    if not bundles:
        sys.exit(f"no bundle for compute capability {found}")
    # The judged programs before what they are compared with.
    speed = sorted((n for n in bundles if n.startswith("speed_")), key=lambda n: ("+bf16" not in n, "+fp8" not in n, "=" in n, n))
    judged = [n for n in speed if re.search(r"\+(bf16|fp8)$", n)]

    with alone():
        report.result["torch"] = ask([sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"])
        report.result["ceilings"] = json.loads(ask([sys.executable, f"{HERE}/torch_side.py", "ceilings"]) or "{}")
        print(query, report.result["torch"], json.dumps(report.result["ceilings"]), flush=True)
        titles = [n.removeprefix("speed_") for n in speed if "=" not in n and "+fp8" not in n]
        torch = TorchSide([split_title(t)[:2] for t in titles if report.only.match(f"speed {t}")])
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            pool.submit(report.step, "correctness", "attention", lambda: check_kernels("partita_attention_check", left(60)))
            pool.submit(report.step, "correctness", "fp8", lambda: check_kernels("partita_fp8_check", left(60)))
            for name in sorted(n for n in bundles if not n.startswith("speed_")):
                work = check_narrow if "+" in name else check
                pool.submit(report.step, "correctness", name, lambda w, n: w(n, bundles[n], left(60)), work, name)
    held = [r.get("holds", False) for r in report.result["correctness"].values()]
    may_time = any(held) or not held  # none was asked for

    def time_speed(names):
        for name in names:
            title = name.removeprefix("speed_")
            trace = re.sub(r"[^A-Za-z0-9_./-]", "-", f"{os.path.splitext(args.output)[0]}.{title}.trace.json.gz")
            report.step("speed", title, lambda: measure(title, bundles[name], left(150), query, trace) if left(150) > 20 else {"error": "no time left"})

    if may_time:
        time_speed(judged)
    if shutil.which("compute-sanitizer"):
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            # cuDNN's attention, of 16 bits, does not run under racecheck.
            for name, tool in ((n, t) for n in SANITIZED if n in bundles for t in ("memcheck", "racecheck") if t == "memcheck" or "+" not in n):
                pool.submit(report.step, "sanitizer", f"{name} {tool}", lambda n, t: sanitized(n, bundles[n], t, left(60)), name, tool)
    # Three processes that wait for each other on one GPU: alone.
    report.step("correctness", "collectives", lambda: check_collectives(left(90)) if left(90) > 20 else {"error": "no time left"})
    if may_time:
        time_speed(n for n in speed if n not in judged)
    for title, result in report.result["speed"].items():
        compare_with_torch(title, result, torch, left(150))
        if "speed_beside_torch" in result:
            print(title, {k: v for k, v in result.items() if k in ("step_seconds", "mfu", "speed_beside_torch", "tuned_beside_torch", "memory_beside_torch")}, flush=True)
    report.write()
    torch.close()
    failures = report.failures()
    print(f"{sum(held)} of {len(held)} models hold; {args.output}", *(f[:600] for f in failures), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
