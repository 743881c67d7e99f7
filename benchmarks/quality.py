"""Quality of predictions: every method on the same network, data, epochs, augmentation and seeds.

    python benchmarks/quality.py choose cifar10-resnet20 deterministic --seed 0 --root DATA --work FOLDER

`choose` scores held-out training images, also corrupted ones, and is for settings that are compared; `run` scores the
test part, corrupted and out-of-distribution images as well, of a network that `choose` has trained already too. Both go
on where they were stopped; at the end they write one JSON file to benchmarks/results/quality, and
`python benchmarks/readme.py` takes it into the tables and into results/quality_runs.csv. The folder DATA holds
cifar-10-batches-bin, fashion-mnist, mnist and svhn_train_head_nolabels.npz.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality_learners import Answer, Learner
from quality_methods import METHODS
from quality_tasks import TASKS, Parts, Task, corrupted
from torch import Tensor

import mcrepar
from mcrepar.metrics import auroc, classification

RESULTS = Path(__file__).parent / "results" / "quality"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["choose", "run"], help="score the validation part alone, or every part")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, required=True, help="the folder with the data")
    parser.add_argument("--work", type=Path, required=True, help="where checkpoints and models go")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    record(given.task, given.method, given.seed, given.root, given.work, given.results, given.command == "run")


def checkpoint_name(task: str, method: str, seed: int) -> str:
    """By which a run is found."""
    return f"{task}-{method.replace(' ', '_').replace(',', '')}-{seed}"


def record(task_name: str, method: str, seed: int, root: Path, work: Path, results: Path, tested: bool) -> None:
    """Train, evaluate and write the record, unless it is there; `tested` when it has the scores of the test part."""
    name = checkpoint_name(task_name, method, seed)
    target = results / f"{name}.json"
    if target.exists() and (not tested or "test" in json.loads(target.read_text())):
        print(f"{name}: there already")
        return
    task = TASKS[task_name]
    parts = task.read(root)
    torch.manual_seed(seed)
    learner = METHODS[method](task, len(parts.train))
    work.mkdir(parents=True, exist_ok=True)
    checkpoint = work / f"{name}.pt"
    history = {} if learner.restore(work, task_name, seed) else train(task, parts, learner, seed, checkpoint)
    scores, answers = evaluate(task, parts, learner, tested)
    np.savez_compressed(work / f"{name}.npz", **{k: a.probs.numpy().astype(np.float16) for k, a in answers.items()})
    results.mkdir(parents=True, exist_ok=True)
    content = {"task": task_name, "method": method, "seed": seed, "epochs": task.epochs, "torch": torch.__version__,
               "mcrepar": mcrepar.__version__, "threads": torch.get_num_threads(), **history, **scores}  # fmt: skip
    target.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{name}: {json.dumps(scores['validation'])}")


def trained(task_name: str, method: str, seed: int, root: Path, work: Path) -> tuple[Task, Parts, Learner]:
    """The task, its data and the learner of a run that has left its checkpoint."""
    task = TASKS[task_name]
    parts = task.read(root)
    learner = METHODS[method](task, len(parts.train))
    checkpoint = work / f"{checkpoint_name(task_name, method, seed)}.pt"
    learner.model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    return task, parts, learner


def train(task: Task, parts: Parts, learner: Learner, seed: int, checkpoint: Path) -> dict[str, Any]:
    """All epochs, a checkpoint after each."""
    history: dict[str, Any] = {"loss": [], "seconds": []}
    generator = torch.Generator().manual_seed(1000 + seed)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        learner.model.load_state_dict(state["model"])
        for optimizer, saved in zip(learner.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        history = state["history"]
        generator.set_state(state["generator"])
        torch.set_rng_state(state["rng"])
    steps = len(parts.train) // task.batch_size
    for epoch in range(len(history["loss"]), task.epochs):
        learner.model.train()
        start, total = time.perf_counter(), 0.0
        order = torch.randperm(len(parts.train), generator=generator)
        for step in range(steps):
            x, y = parts.batch(order[step * task.batch_size : (step + 1) * task.batch_size], generator)
            total += learner.step(x, y, (epoch * steps + step) / (task.epochs * steps))
        history["loss"].append(total / steps)
        history["seconds"].append(time.perf_counter() - start)
        print(f"{checkpoint.stem}: epoch {epoch + 1}, loss {total / steps:.4f}", flush=True)
        state = {"model": learner.model.state_dict(), "optimizers": [o.state_dict() for o in learner.optimizers],
                 "history": history, "generator": generator.get_state(), "rng": torch.get_rng_state()}  # fmt: skip
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)
    return history


def evaluate(task: Task, parts: Parts, learner: Learner, tested: bool) -> tuple[dict[str, Any], dict[str, Answer]]:
    """Every figure of a trained model, and the answers behind them; without `tested` no test example is looked at."""
    learner.calibrate(parts)

    def ask(x: Tensor) -> Answer:
        return learner.predict(parts.prepare(x), task.draws)

    answers = {"validation": ask(parts.validation.x)}
    scores: dict[str, Any] = {"validation": scores_of(answers["validation"], parts.validation.y)}
    if not tested:
        for name, split in corrupted(parts.validation).items():
            scores[f"validation, {name}"] = scores_of(ask(split.x), split.y)
        return {**scores, **learner.facts()}, answers
    answers["test"] = ask(parts.test.x)
    scores["test"] = scores_of(answers["test"], parts.test.y)
    inside = uncertainties(answers["test"])
    for name, x in parts.ood.items():
        answers[f"ood {name}"] = answer = ask(x)
        scores[f"ood {name}"] = {k: auroc(inside[k], u) for k, u in uncertainties(answer).items()}
    for name, split in parts.corrupted.items():
        scores[f"corrupted {name}"] = scores_of(ask(split.x), split.y)
    return {**scores, **learner.facts()}, answers


def uncertainties(answer: Answer) -> dict[str, np.ndarray]:
    """By which out-of-distribution examples are recognised."""
    entropy = torch.special.entr(answer.probs.double()).sum(1)
    return {"entropy": entropy.numpy(), "mutual_information": (entropy - answer.expected_entropy).clamp_min(0).numpy()}


def scores_of(answer: Answer, y: Tensor) -> dict[str, float]:
    """All metrics of classes, and the accuracy on the half with the most confident predictions."""
    own = uncertainties(answer)
    probs = answer.probs.double().numpy()
    scores = classification(probs / probs.sum(1, keepdims=True), y.numpy(), **own)
    confident = probs.max(1).argsort()[len(probs) // 2 :]
    right = probs[confident].argmax(1) == y.numpy()[confident]
    return {**scores, "accuracy_most_confident_half": float(right.mean())}


if __name__ == "__main__":
    main()
