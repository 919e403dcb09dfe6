"""One side of the benchmark in a process of its own.
   torch_worker.py export MODEL FOLDER THREADS    writes model.onnx, train.yaml and data.npz; prints the step's FLOPs
   torch_worker.py eager|compile MODEL FOLDER THREADS    then, for each line on stdin, runs a round of steps and prints its times and losses
   torch_worker.py jax MODEL FOLDER THREADS    the same, with the module as a function of JAX (torchax), compiled whole with optax's AdamW
   torch_worker.py sgemm DNNL - THREADS    the same with rounds of large products: GF/s of PyTorch and of the oneDNN library DNNL, medians, of the best size
Prints one JSON object a line."""
import ctypes
import json
import mmap
import statistics
import sys
import time

import numpy as np
import torch

import models


def peak_bytes():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["VmHWM"].split()[0]) * 1024


def reset_peak():
    try:
        open("/proc/self/clear_refs", "w").write("5")
    except OSError:
        pass  # then the peak is the whole process's


def say(**what):
    print(json.dumps(what), flush=True)


def attention_flops():
    """PyTorch's counter knows nothing of attention on CPUs. Two products forward, four backward (the scores that it makes again are not counted); half of them where it is causal."""
    def products(q, k, v, causal):
        batch, heads, rows, width = q
        return 2 * batch * heads * rows * k[-2] * (width + v[-1]) // (2 if causal else 1)

    def forward(q, k, v, dropout=0.0, causal=False, *_, **__):
        return products(q, k, v, causal)

    def backward(_, q, k, v, out, lse, dropout, causal, *__, **___):
        return 2 * products(q, k, v, causal)

    ops = torch.ops.aten
    return {ops._scaled_dot_product_flash_attention_for_cpu: forward, ops._scaled_dot_product_flash_attention_for_cpu_backward: backward}


def export(model, folder):
    arrays = model.data(model.steps + 1, np.random.default_rng(1))
    np.savez(f"{folder}/data.npz", **arrays)
    open(f"{folder}/train.yaml", "w").write(models.recipe(model))
    torch.manual_seed(0)
    module = model.make()
    batch = models.batches(model, arrays)[0]
    inputs = batch if model.loss == "output" else batch[:1]
    names = [k for k in arrays if model.loss == "output" or k != "target"]
    if model.dynamo:
        torch.onnx.export(module, inputs, f"{folder}/model.onnx", input_names=names, output_names=["y"], opset_version=18, dynamo=True, optimize=False)
    else:
        torch.onnx.export(module, inputs, f"{folder}/model.onnx", input_names=names, output_names=["y"], opset_version=17, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    from torch.utils.flop_counter import FlopCounterMode
    torch.manual_seed(0)
    module = model.make()
    with FlopCounterMode(display=False, custom_mapping=attention_flops()) as counter:
        models.loss_of(model, module, batch).backward()
    say(flops=counter.get_total_flops(), parameters=sum(p.numel() for p in module.parameters()))


def train(kind, model, folder):
    before = peak_bytes()
    torch.manual_seed(0)
    module = model.make()
    arrays = dict(np.load(f"{folder}/data.npz"))
    data = models.batches(model, arrays)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True, **models.OPTIMIZER)

    def loss(*batch):
        return models.loss_of(model, module, batch)

    if kind == "compile":
        loss = torch.compile(loss)

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        value = loss(*batch)
        value.backward()
        optimizer.step()
        return value.item()

    run_rounds(step, data, before)


def train_with_jax(model, folder, threads):
    import os
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # which is how XLA counts its threads
    import jax
    import optax
    import torchax
    before = peak_bytes()

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = model.make()

        def forward(self, *batch):
            return models.loss_of(model, self.module, batch)

    torch.manual_seed(0)
    module = Loss()
    trained = {name for name, _ in module.named_parameters()}
    states, function = torchax.extract_jax(module)
    parameters, buffers = ({k: v for k, v in states.items() if (k in trained) == chosen} for chosen in (True, False))
    o = models.OPTIMIZER
    optimizer = optax.adamw(o["lr"], *o["betas"], eps=o["eps"], weight_decay=o["weight_decay"])
    moments = optimizer.init(parameters)

    def update(parameters, moments, buffers, batch):
        value, gradients = jax.value_and_grad(lambda p: function({**p, **buffers}, batch))(parameters)
        changes, moments = optimizer.update(gradients, moments, parameters)
        return optax.apply_updates(parameters, changes), moments, value

    update = jax.jit(update, donate_argnums=(0, 1))

    def step(batch):
        nonlocal parameters, moments
        parameters, moments, value = update(parameters, moments, buffers, batch)
        return float(value)

    data = models.batches(model, dict(np.load(f"{folder}/data.npz")))
    run_rounds(step, [tuple(jax.numpy.asarray(x.numpy()) for x in batch) for batch in data], before)


def run_rounds(step, data, before):
    first = True
    for _ in sys.stdin:
        seconds, losses = [], []
        for at, batch in enumerate(data):
            begin = time.perf_counter()
            losses.append(step(batch))
            if at:
                seconds.append(time.perf_counter() - begin)
            elif first:
                reset_peak()
                first = False
        say(seconds=seconds, loss=losses, peak=peak_bytes(), imports=before)


def huge(count):
    """Floats in large pages, where the system has them: what Partita's memory is made of too."""
    memory = mmap.mmap(-1, 4 * count)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).uniform_()


def sgemm(library, sizes=(1024, 2048, 3072), repeat=8):
    dnnl = ctypes.CDLL(library)
    i64, real = ctypes.c_int64, ctypes.c_float
    pointer = lambda t: ctypes.c_void_p(t.data_ptr())

    def rate(product, size):
        product()
        times = []
        for _ in range(repeat):
            begin = time.perf_counter()
            product()
            times.append(time.perf_counter() - begin)
        return 2e-9 * size**3 / statistics.median(times)

    for _ in sys.stdin:
        best = {"torch": 0, "onednn": 0}
        for size in sizes:
            a, b, c = (huge(size * size).view(size, size) for _ in range(3))
            n = i64(size)
            onednn = lambda: dnnl.dnnl_sgemm(ctypes.c_char(b"N"), ctypes.c_char(b"N"), n, n, n, real(1), pointer(a), n, pointer(b), n, real(0), pointer(c), n)
            best["torch"] = max(best["torch"], rate(lambda: torch.mm(a, b, out=c), size))
            best["onednn"] = max(best["onednn"], rate(onednn, size))
        say(**best)


def main():
    what, name, folder, threads = sys.argv[1:5]
    torch.set_num_threads(int(threads))
    if what == "sgemm":
        return sgemm(name)
    model = models.MODELS[name]
    if what == "jax":
        return train_with_jax(model, folder, int(threads))
    return export(model, folder) if what == "export" else train(what, model, folder)


main()
