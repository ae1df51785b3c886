"""Training throughput on this machine, target tokens/s, beside another toolkit where one is given.

    python benchmarks/train_speed.py --data FOLDER [--size small|base] [--pairs 7] [--precision auto]
        [--peer opennmt=/path/to/onmt_train | --peer eole[-bf16]=/path/to/eole | --peer nmt=PRECISION
         | --peer marian=/path/to/python]

FOLDER holds train.en.gz and train.de.gz (Multi30k). Both sides train the same model on the same subwords with the
same dropout, in alternating processes: a shared machine's speed drifts, and only ratios of neighbours compare. The
peer batches by sentences × longest side ≤ 4,096, which makes about 3,400 target tokens an update; ours are set to as
many. The peer `nmt` is ours in another precision; that of `marian` is a Python with pymarian, and has one process with
two threads, as its package trains on CPUs. Tokens are target tokens with `</s>`, padding not counted, over the
updates after the first few.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np

from nmt import recipe as recipes
from nmt.data.corpus import Corpus
from nmt.data.folders import directory
from nmt.data.prepare import prepare
from nmt.system.console import Console
from nmt.text.tokenizer import Tokenizer

SIZES = {
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
}
UPDATES = {"small": (13, 4), "base": (7, 2)}  # updates of a run, and how many of them are not counted
THREADS = 2
OUR_BATCH = 3700
PEER_BATCH = 4096


def write_recipe(folder: Path, data: Path, size: str) -> recipes.Recipe:
    """Our run as a recipe file in `folder`."""
    updates, _ = UPDATES[size]
    content = {
        "name": "speed",
        "data": {
            "source": "en",
            "target": "de",
            "root": str(data),
            "train": [{"source": "train.en.gz", "target": "train.de.gz"}],
        },
        "tokenizer": {"vocab_size": 8000},
        "model": {**SIZES[size], "norm": "pre", "dropout": 0.1, "attention_dropout": 0.1, "feed_forward_dropout": 0.1},
        "training": {"updates": updates, "batch_tokens": OUR_BATCH, "log_updates": 1, "warmup": 400},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return recipes.load(path)


def ours(precision: str, folder: Path, size: str) -> float:
    """Target tokens/s of one run of nmt train."""
    command = [sys.executable, "-m", "nmt", "train", "recipe.yaml", "--device", "cpu"]
    command += ["--set", f"training.precision={precision}"]
    out = tempfile.mkdtemp(dir=folder)
    subprocess.run([*command, "--out", out, "--threads", str(THREADS), "--quiet"], cwd=folder, check=True)
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    counted = [row for row in rows if "loss" in row][UPDATES[size][1] :]
    seconds = sum(row["tokens_per_update"] / row["tokens_per_second"] for row in counted)
    return float(sum(row["tokens_per_update"] for row in counted) / seconds)


def write_pieces(folder: Path, recipe: recipes.Recipe) -> None:
    """The same subwords as text, and the vocabulary, for the peer."""
    os.chdir(folder)
    prepared = directory(recipe)
    tokenizer, corpus = Tokenizer.load(prepared), Corpus(prepared / "train.arrow")
    for name, read in (("en", corpus.sources), ("de", corpus.targets)):
        ids = [ids[0, :length] for ids, (length,) in (read(np.array([row])) for row in range(len(corpus)))]
        lines = (" ".join(tokenizer.source.pieces(row.tolist())) for row in ids)
        (folder / f"pieces.{name}").write_text("\n".join(lines) + "\n")
    pieces = tokenizer.source.pieces(range(4, len(tokenizer.source)))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")


def peer_options(folder: Path, size: str) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """Settings that both peers share: of data, of training, and of the model."""
    updates, model = UPDATES[size][0], SIZES[size]
    data: dict[str, object] = {
        "save_data": str(folder / "peer-data"),
        "overwrite": True,
        "src_vocab": str(folder / "vocab.txt"),
        "tgt_vocab": str(folder / "vocab.txt"),
        "share_vocab": True,
        "data": {"corpus_1": {"path_src": str(folder / "pieces.en"), "path_tgt": str(folder / "pieces.de")}},
        "seed": 1,
        "report_every": 1,
    }
    training: dict[str, object] = {
        "train_steps": updates,
        "valid_steps": 10**6,
        "save_checkpoint_steps": 10**6,
        "batch_type": "tokens",
        "batch_size": PEER_BATCH,
        "batch_size_multiple": 1,
        "normalization": "tokens",
        "bucket_size": 29000,
        "num_workers": 0,
        "dropout": [0.1],
        "attention_dropout": [0.1],
        "label_smoothing": 0.1,
        "optim": "adam",
        "adam_beta2": 0.98,
        "decay_method": "noam",
        "learning_rate": 2.0,
        "warmup_steps": 400,
        "max_grad_norm": 0,
    }
    architecture = {"hidden_size": model["d_model"], "heads": model["heads"], "transformer_ff": model["d_ff"]}
    return data, training, dict(architecture)


def opennmt(command: str, folder: Path, size: str) -> float:
    """Target tokens/s of one run of OpenNMT-py's onmt_train."""
    data, training, model = peer_options(folder, size)
    width, layers = SIZES[size]["d_model"], SIZES[size]["layers"]
    model |= {"encoder_type": "transformer", "decoder_type": "transformer", "word_vec_size": width}
    model |= {"enc_layers": layers, "dec_layers": layers, "position_encoding": True}
    model |= {"share_embeddings": True, "share_decoder_embeddings": True, "param_init": 0, "param_init_glorot": True}
    training |= {"save_model": str(folder / "peer"), "model_dtype": "fp32"}
    return peer_run([command, "--config"], {**data, **training, **model}, folder, size)


def eole(command: str, folder: Path, size: str, dtype: str = "fp32") -> float:
    """Target tokens/s of one run of eole train, computing in `dtype`."""
    data, training, model = peer_options(folder, size)
    model |= {"architecture": "transformer", "layers": SIZES[size]["layers"]}
    model |= {"share_embeddings": True, "share_decoder_embeddings": True}
    model["embeddings"] = {
        "word_vec_size": SIZES[size]["d_model"],
        "position_encoding_type": "SinusoidalInterleaved",
    }
    training |= {"model_path": str(folder / "peer"), "compute_dtype": dtype, "world_size": 1, "gpu_ranks": []}
    training |= {"param_init_method": "xavier_uniform"}
    config = {**data, "n_sample": 0, "training": training, "model": model}
    return peer_run([command, "train", "-config"], config, folder, size)


def marian(command: str, folder: Path, size: str) -> float:
    """Target tokens/s of one run of Marian's training, by its log, where `command` is a Python that has pymarian."""
    model = SIZES[size]
    vocabulary = folder / "pieces.yml"
    pieces = ["</s>", "<unk>", *(folder / "vocab.txt").read_text().splitlines()]
    vocabulary.write_text("".join(f"{json.dumps(piece)}: {index}\n" for index, piece in enumerate(pieces)))
    options: dict[str, object] = {
        "type": "transformer",
        "model": folder / "peer.npz",
        "train-sets": [folder / "pieces.en", folder / "pieces.de"],
        "vocabs": [vocabulary, vocabulary],
        "tied-embeddings-all": "true",
        "dim-emb": model["d_model"],
        "transformer-dim-ffn": model["d_ff"],
        "transformer-heads": model["heads"],
        "enc-depth": model["layers"],
        "dec-depth": model["layers"],
        "transformer-preprocess": "n",
        "transformer-postprocess": "da",
        "transformer-postprocess-top": "n",
        "transformer-ffn-activation": "relu",
        "transformer-dropout": 0.1,
        "transformer-dropout-attention": 0.1,
        "transformer-dropout-ffn": 0.1,
        "label-smoothing": 0.1,
        "optimizer-params": [0.9, 0.98, 1e-9],
        "clip-norm": 0,
        "mini-batch": 4096,
        "mini-batch-words": OUR_BATCH,
        "max-length": 200,
        "after-batches": UPDATES[size][0],
        "disp-freq": 1,
        "save-freq": "1000000u",
        "cpu-threads": THREADS,
        "workspace": 4096,
        "seed": 1,
        "overwrite": "true",
        "no-reload": "true",  # of the run before
        "no-restore-corpus": "true",
    }
    arguments = []
    for key, value in options.items():
        arguments += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    run = "import sys, _pymarian; sys.exit(_pymarian.main(sys.argv[1:]))"
    done = subprocess.run([command, "-c", run, "train", *arguments], capture_output=True, text=True, check=False)
    log = done.stdout + done.stderr
    rows = [
        (float(seconds), float(speed.replace(",", "")))
        for seconds, speed in re.findall(r"Up\. \d+ .*? : Time ([\d.]+)s : ([\d.,]+) words/s", log)
    ]
    if done.returncode != 0 or len(rows) < UPDATES[size][0]:
        raise SystemExit(f"the peer failed:\n{log[-2000:]}")
    counted = rows[UPDATES[size][1] :]
    return sum(seconds * speed for seconds, speed in counted) / sum(seconds for seconds, _ in counted)


PEERS: dict[str, Callable[[str, Path, str], float]] = {
    "opennmt": opennmt,
    "eole": eole,
    "eole-bf16": partial(eole, dtype="bf16"),
    "nmt": ours,
    "marian": marian,
}


def peer_run(command: list[str], config: dict[str, object], folder: Path, size: str) -> float:
    """Runs a peer and reads its log: a time stamp and `bsz: source/target/sentences` for each update."""
    path = folder / "peer.yaml"
    path.write_text(json.dumps(config))
    threads = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    done = subprocess.run(
        [*command, str(path)], env={**os.environ, **threads}, capture_output=True, text=True, check=False
    )
    log = done.stdout + done.stderr
    rows = [
        (datetime.strptime(stamp.replace(",", "."), "%Y-%m-%d %H:%M:%S.%f").timestamp(), int(tokens))
        for stamp, tokens in re.findall(r"\[(\S+ \S+) INFO\] Step.*?bsz:\s*\d+/\s*(\d+)/", log)
    ]
    if done.returncode != 0 or len(rows) != UPDATES[size][0]:
        raise SystemExit(f"the peer failed:\n{log[-2000:]}")
    skipped = UPDATES[size][1]
    return sum(tokens for _, tokens in rows[skipped:]) / (rows[-1][0] - rows[skipped - 1][0])


def spread(values: list[float], digits: int) -> str:
    """Median, and least to greatest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def main() -> None:
    """Measures and prints as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/raw/multi30k"))
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--precision", default="auto", help="training.precision of ours")
    parser.add_argument("--peer", metavar="NAME=COMMAND", help=f"NAME is one of {', '.join(PEERS)}")
    arguments = parser.parse_args()
    data, size = arguments.data.resolve(), arguments.size
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, data, size)
        os.chdir(folder)
        prepare(recipe, Console(quiet=True), THREADS)
        kind, _, command = (arguments.peer or "").partition("=")
        if kind:
            write_pieces(folder, recipe)
        own: list[float] = []
        others: list[float] = []
        for pair in range(1, arguments.pairs + 1):
            own.append(ours(arguments.precision, folder, size))
            line = f"{size} {pair}: nmt {own[-1]:,.0f} tok/s"
            if kind:
                others.append(PEERS[kind](command, folder, size))
                line += f", {kind} {others[-1]:,.0f} tok/s, ratio {own[-1] / others[-1]:.2f}"
            print(line, flush=True)
        print(f"{size} nmt: median {spread(own, 0)} target tok/s")
        if kind:
            ratios = [mine / other for mine, other in zip(own, others, strict=True)]
            print(f"{size} {kind}: median {spread(others, 0)} target tok/s; nmt/{kind}: median {spread(ratios, 2)}")


if __name__ == "__main__":
    main()
