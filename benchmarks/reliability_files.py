"""Attempts to break the readers of data: files of every format, damaged at random, cut, replaced or turned into traps.

Every try reads one damaged set in a process of its own, which is ended when it takes too long.
`python benchmarks/reliability_files.py --tries 300` prints what broke.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reliability_trial import Part, Trial

from mcrepar.data import load
from mcrepar.errors import McreparError

SECONDS = 20.0  # in which a file is read or refused
MEGABYTES = 2500  # that reading may add, of which an archive may unpack to 512
LARGE = 2**30  # bytes that a trap unpacks to

Write = Callable[[np.random.Generator, Path], None]


@dataclass(frozen=True)
class Format:
    """Files of one kind.

    Args:
        reader: a name of mcrepar.data.DATASETS.
        write: makes a small set.
        checked: whether the format has a checksum, so that damage must never change what is read.
        trap: the bytes of a file that unpacks to far more than it is; None where the format packs nothing.
        options: of the reader.
    """

    reader: str
    write: Write
    checked: bool = False
    trap: Callable[[], bytes] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _idx(pack: bool, rng: np.random.Generator, root: Path) -> None:
    for part, count in (("train", 30), ("t10k", 10)):
        images, labels = rng.integers(0, 256, (count, 28, 28)), np.arange(count) % 10
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            raw = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
            raw += array.astype(np.uint8).tobytes()
            (root / f"{name}.gz" if pack else root / name).write_bytes(gzip.compress(raw) if pack else raw)


def _cifar_binary(rng: np.random.Generator, root: Path) -> None:
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = np.concatenate([np.arange(10)[:, None], rng.integers(0, 256, (10, 3072))], axis=1)
        (root / name).write_bytes(rows.astype(np.uint8).tobytes())


def _cifar_pickle(rng: np.random.Generator, root: Path) -> None:
    names = {f"{kind}_label_names": [f"{kind} {i}" for i in range(n)] for kind, n in (("fine", 100), ("coarse", 20))}
    (root / "meta").write_bytes(pickle.dumps(names, protocol=2))
    for name in ("train", "test"):
        labels = list(range(100))
        content = {"data": rng.integers(0, 256, (100, 3072), dtype=np.uint8), "filenames": [f"{i}.png" for i in labels]}
        content |= {"fine_labels": labels, "coarse_labels": [label % 20 for label in labels]}
        (root / name).write_bytes(pickle.dumps(content, protocol=2))


def _npy(rng: np.random.Generator, root: Path) -> None:
    np.save(root / "labels.npy", np.arange(20) % 10)
    np.save(root / "gaussian_noise.npy", rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8))


def _npz(packed: bool, rng: np.random.Generator, root: Path) -> None:
    arrays = {f"x_{part}": rng.integers(0, 60, (20, 8, 8), dtype=np.uint8) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(20) % 2 for part in ("train", "test")}
    (np.savez_compressed if packed else np.savez)(root / "mine.npz", **arrays)


def _mat(rng: np.random.Generator, root: Path) -> None:
    from scipy.io import savemat

    for part in ("train", "test"):
        content = {"X": rng.integers(0, 9, (32, 32, 3, 20)).astype(np.uint8), "y": np.arange(20)[:, None] % 10 + 1}
        savemat(root / f"{part}_32x32.mat", content, do_compression=True)


def _images(suffixes: tuple[str, ...], rng: np.random.Generator, root: Path) -> None:
    from PIL import Image

    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            (root / part / kind).mkdir(parents=True, exist_ok=True)
            for i, suffix in enumerate(suffixes):
                pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / kind / f"{i}{suffix}")


def _nifti(suffix: str, rng: np.random.Generator, root: Path) -> None:
    import nibabel

    with (root / "participants.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "split"])
        for i in range(6):
            volume = nibabel.Nifti1Image(rng.normal(100, 20, (6, 7, 8)).astype(np.float32), np.eye(4))
            nibabel.save(volume, root / f"{i}{suffix}")
            table.writerow([f"{i}{suffix}", "ab"[i % 2], "train" if i < 4 else "test"])


@lru_cache
def _gz_trap() -> bytes:
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as packed:
        for _ in range(LARGE // 2**24):
            packed.write(bytes(2**24))
    return file.getvalue()


@lru_cache
def _npz_trap() -> bytes:
    file, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (LARGE,)})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(header.getvalue())
                for _ in range(LARGE // 2**24 if name == "x_train" else 1):
                    member.write(bytes(2**24))
    return file.getvalue()


@lru_cache
def _pickle_trap() -> bytes:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    return pickle.dumps({"data": value, "fine_labels": value}, protocol=2)


@lru_cache
def _png_trap() -> bytes:
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 1, 0, 0, 0, 0)
    packed = zlib.compress(bytes(40_000 * 5001), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


FORMATS: dict[str, Format] = {
    "idx": Format("mnist", partial(_idx, False), trap=_gz_trap),
    "idx in gz": Format("mnist", partial(_idx, True), checked=True, trap=_gz_trap),
    "CIFAR, binary": Format("cifar10", _cifar_binary, trap=_gz_trap),
    "CIFAR, pickled": Format("cifar100", _cifar_pickle, trap=_pickle_trap),
    "npy": Format("cifar10_c", _npy),
    "npz": Format("arrays", partial(_npz, False), checked=True, trap=_npz_trap),
    "npz, packed": Format("arrays", partial(_npz, True), checked=True, trap=_npz_trap),
    "MATLAB, packed": Format("svhn", _mat, checked=True),
    "PNG": Format("folder", partial(_images, (".png",) * 3), checked=True, trap=_png_trap),
    "other images": Format("folder", partial(_images, (".jpg", ".bmp", ".gif", ".tif", ".webp", ".ppm"))),
    "NIfTI": Format("nifti", partial(_nifti, ".nii"), options={"size": (6, 7, 8)}),
    "NIfTI in gz": Format("nifti", partial(_nifti, ".nii.gz"), True, _gz_trap, {"size": (6, 7, 8)}),
}


def _cut(chance: random.Random, path: Path) -> str:
    raw = path.read_bytes()
    path.write_bytes(raw[: chance.randrange(len(raw))])
    return "cut"


def _flip(chance: random.Random, path: Path) -> str:
    raw, count = bytearray(path.read_bytes()), chance.choice((1, 1, 1, 20))
    first = chance.random() < 0.3  # headers are where it hurts
    for _ in range(count):
        raw[chance.randrange(min(len(raw), 400) if first else len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)
    return f"{count} flipped bits"


def _resize(chance: random.Random, path: Path) -> str:
    raw, place = path.read_bytes(), chance.randrange(path.stat().st_size)
    some = chance.randbytes(chance.randrange(1, 50))
    new = chance.choice(
        (raw[:place] + some + raw[place:], raw[:place] + raw[place + len(some) :], raw + some, some + raw)
    )
    path.write_bytes(new)
    return "bytes added or taken away"


def _extreme(chance: random.Random, path: Path) -> str:
    raw, place = bytearray(path.read_bytes()), 2 * chance.randrange(40)
    raw[place : place + 4] = chance.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\x00\x00\x00\x80"))
    path.write_bytes(raw)
    return "an extreme number in its header"


def _replaced(chance: random.Random, path: Path) -> str:
    path.unlink()
    kind = chance.choice(("pipe", "folder", "loop", "device", "text", "empty", "noise", "sparse", "hole"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to(chance.choice(("/dev/zero", "/dev/null", "/dev/tty")))
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**36)
    elif kind != "hole":
        path.write_bytes({"text": b"<html>", "empty": b"", "noise": chance.randbytes(3000)}[kind])
    return f"{kind} in its place"


ABSENT = ("hole in its place", "folder in its place")
DAMAGES = (_cut, _flip, _flip, _resize, _extreme, _replaced)


def attempt(kind: Format, chance: random.Random, number: int) -> str:
    """Damage one file of a fresh set and read it; what broke, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        kind.write(np.random.default_rng(number), root)
        before = _digest(kind, root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        path = chance.choice(files)
        if kind.trap is not None and number % 25 == 24:
            path = max(files, key=lambda file: file.stat().st_size)
            path.write_bytes(kind.trap())
            done = "a trap"
        else:
            done = chance.choice(DAMAGES)(chance, path)
        found = _judged(kind, root)
        kept = shutil.copy(path, tempfile.mkdtemp()) if found == "hangs" and path.is_file() else ""
    free = not kind.checked or path.suffix == ".csv" or done in ABSENT  # a set may do without a file
    if found in ("refused", f"read {before}") or (free and found.startswith("read ")):
        return ""
    return f"{path.name}, {done} (set {number}): {found} {kept}"


def _digest(kind: Format, root: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load(kind.reader, root, **kind.options)
    value = hashlib.sha256()
    for part in data.parts.values():
        value.update(part.x.contiguous().numpy().data)
        value.update(part.y.contiguous().numpy().data)
    return value.hexdigest()[:16]


def _judged(kind: Format, root: Path) -> str:
    """refused, read DIGEST, or what broke: in a process of its own, ended when it takes too long."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(kind, root, there))
    process.start()
    there.close()
    try:
        said = str(here.recv()) if here.poll(SECONDS) else "hangs"
    except EOFError:
        process.join(5)
        said = f"the process ended with {process.exitcode}"
    if process.is_alive():
        process.kill()
    process.join()
    return said


def _child(kind: Format, root: Path, answer: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nibabel prints what it thinks of headers
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        said = f"read {_digest(kind, root)}"
    except McreparError as error:
        said = "refused" if str(error) else "an error without words"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"[:200]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    answer.send(said if grown < MEGABYTES else f"it took {grown:,.0f} MB")


def _tried(name: str, chance: random.Random, tries: int) -> Trial:
    kind = FORMATS[name]
    torch.set_num_threads(1)  # threads do not survive a fork
    found = (attempt(kind, chance, number) for number in range(tries))
    failures = [failure for failure in found if failure]
    promise = f"Damaged {name} files are an error that names them, soon"
    promise += "; never other data." if kind.checked else ", or data of the right form: the format has no checksum."
    how = "cut, flipped bits, bytes too many or too few, extreme headers, pipes, devices, links, archives without end"
    return Trial(promise, how, tries, failures)


def _names() -> Iterator[tuple[str, Part]]:
    for name in FORMATS:
        yield f"damaged {name}", partial(_tried, name)


PARTS: dict[str, Part] = dict(_names())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=300, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append")
    arguments = parser.parse_args()
    for name in arguments.part or PARTS:
        trial = PARTS[name](random.Random(arguments.seed), arguments.tries)
        print(f"{name}: {trial.tries} tries, {len(trial.failures)} failures", flush=True)
        for failure in trial.failures:
            print(f"  {failure}")


if __name__ == "__main__":
    main()
