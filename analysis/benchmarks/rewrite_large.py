"""Memory that `lngeom rewrite` and `certify` need for a checkpoint larger than that: a generated Llama of some GiB.

`python -m analysis rewrite_large --gib 8 --folder DIR` needs twice that space on disk. It prints one line of JSON:
sizes, seconds, and the largest resident memory of the process that rewrites, and of another one that compares the
new checkpoint with the old one.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
from lngeom._core.files import temporary_folder

BLOCK = 1 << 22
"""Random numbers that are drawn at a time."""

CHILD = """
import json, resource, sys, time
from lngeom import rewrite as rw
from lngeom.transformers.rewrite import steps
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
import jax.numpy as jnp
jnp.ones(3).block_until_ready()
base, start = peak(), time.perf_counter()
found = rw.apply(*rw.load(sys.argv[1]), steps.parse(sys.argv[3]), probes=(2, 8))
rw.save(found, sys.argv[2])
print(json.dumps({"passed": found.certificate.passed, "base": base, "peak": peak(),
    "seconds": time.perf_counter() - start, "exact": found.certificate.exact.relative}))
"""

COMPARE = """
import json, resource, sys, time
from lngeom import rewrite as rw
start = time.perf_counter()
found = rw.certify(sys.argv[1], sys.argv[2])
print(json.dumps({"verdict": found.verdict, "log_probabilities": found.log_probabilities, "rounding": found.rounding,
    "differ": [part.path for part in found.different], "actions": found.actions,
    "certify_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "certify_seconds": time.perf_counter() - start}))
"""


def generate(folder: Path, gib: float, width: int = 4096, vocabulary: int = 32000, shards: int = 4) -> int:
    """Writes a Llama in bfloat16 of about this size, with random numbers.

    Args:
        folder: where to; it is made.
        gib: size of all files.
        width: width of the stream.
        vocabulary: rows of the table of tokens, and of the head.
        shards: number of files.

    Returns:
        Bytes written.
    """
    inner = 11 * width // 4
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "lm_head.weight": (vocabulary, width),
    }
    shapes["model.norm.weight"] = (width,)
    layers = 0
    while sum(map(math.prod, shapes.values())) * 2 < gib * 2**30:
        at = f"model.layers.{layers}."
        shapes |= {f"{at}self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
        shapes |= {f"{at}mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = (width, inner)
        shapes |= {f"{at}{part}_layernorm.weight": (width,) for part in ("input", "post_attention")}
        layers += 1
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    config |= {"num_attention_heads": width // 64, "vocab_size": vocabulary, "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    rng = np.random.default_rng(0)
    names, where, total = list(shapes), {}, 0
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i::shards]
        where |= dict.fromkeys(part, file)
        header, position = {}, 0
        for name in part:
            size = 2 * math.prod(shapes[name])
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [position, position + size]}
            position += size
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in part:
                gain, left = len(shapes[name]) == 1, math.prod(shapes[name])
                while left:
                    numbers = rng.standard_normal(min(left, BLOCK), np.float32)
                    numbers = 1 + numbers if gain else numbers / math.sqrt(width)
                    numbers.astype(ml_dtypes.bfloat16).tofile(out)
                    left -= len(numbers)
            total += out.tell()
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def measure(folder: Path, gib: float, do: str = "untie,fold,rotate", **shape: int) -> dict[str, float]:
    """Generates a checkpoint, rewrites it in a process of its own, and reads that one's memory.

    Args:
        folder: an existing folder with space for twice the size.
        gib: size of the checkpoint.
        do: steps, as in the command line.
        **shape: `width`, `vocabulary` and `shards` of `generate`.

    Returns:
        Bytes of the checkpoint, of memory after imports ("base") and at most ("peak"), seconds, whether certified; what
        `certify` says of both, its memory and seconds.
    """
    old, new = folder / "old", folder / "new"
    size = generate(old, gib, **shape)

    def child(program: str, *arguments: str) -> dict[str, float]:
        command = [sys.executable, "-c", program, str(old), str(new), *arguments]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    return {"bytes": size, **child(CHILD, do), **child(COMPARE)}


def main() -> None:
    """Measures once and prints one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m analysis rewrite_large", description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0, help="size of the checkpoint")
    parser.add_argument("--folder", type=Path, help="folder with space for twice that; a temporary one by default")
    parser.add_argument("--do", default="untie,fold,rotate", help="steps")
    options = parser.parse_args()
    start = time.perf_counter()
    with temporary_folder(options.folder) as folder:
        found = measure(folder, options.gib, options.do)
    found["total_seconds"] = time.perf_counter() - start
    print(json.dumps(found))


if __name__ == "__main__":
    main()
