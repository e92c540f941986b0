#!/usr/bin/env python3
"""model-files.py DIR: makes the model files of docs/models.md, safetensors files of 128 MiB with random weights.

Needs numpy and safetensors. Copy base.safetensors to a mount, then another one; `nvfold df` shows what it adds.
"""

import os
import sys

import numpy
from safetensors.numpy import save_file

LAYERS = 16
GENERATOR = numpy.random.default_rng(1)


def changed(weights):
    noise = GENERATOR.standard_normal(weights.shape, dtype=numpy.float32) * 1e-3
    return (weights.astype(numpy.float32) + noise).astype(numpy.float16)


def tuned(model, layers):
    return {name: changed(w) if int(name.split(".")[1]) in layers else w for name, w in model.items()}


def main(folder):
    os.makedirs(folder, exist_ok=True)
    shape = (2048, 2048)
    layers = [(GENERATOR.standard_normal(shape, dtype=numpy.float32) * 0.02).astype(numpy.float16) for _ in range(LAYERS)]
    base = {f"layers.{at}.weight": weights for at, weights in enumerate(layers)}
    head = tuned(base, {LAYERS - 2, LAYERS - 1})
    files = {
        "base": (base, None),
        "other-metadata": (base, {"note": "the same weights, " * 5}),
        "head": (head, None),
        "head-other-metadata": (head, {"note": "two of 16 layers"}),
        "all-layers": (tuned(base, range(LAYERS)), None),
    }
    for name, (model, metadata) in files.items():
        save_file(model, os.path.join(folder, f"{name}.safetensors"), metadata=metadata)


if __name__ == "__main__":
    main(sys.argv[1])
