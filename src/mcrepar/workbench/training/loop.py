"""The training loop: one step after another, each a function of the seed, the step and the process alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mcrepar import checks
from mcrepar.errors import McreparError, ParameterError
from mcrepar.objective import Elbo, loss_of
from mcrepar.workbench.training import checkpoint
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.distributed import World, joined
from mcrepar.workbench.training.learner import Learner
from mcrepar.workbench.training.log import Position, Row, Sums, check_tensorboard, tensorboard, write_log
from mcrepar.workbench.training.process import Caught, Diverged, Stopped, caught
from mcrepar.workbench.training.progress import display_of
from mcrepar.workbench.training.run_folder import RunFolder
from mcrepar.workbench.training.schedules import final_beta, seed_of
from mcrepar.workbench.training.scores import mean_score, total_score, validate
from mcrepar.workbench.training.task import Task
from mcrepar.workbench.training.twin import twin_of

FAILED = 1000  # above the number of every signal


def run(config: TrainConfig) -> Path:
    """Train as the options say, or go on with a run, and return its folder."""
    config.check()
    if config.root is not None:  # the run can then be evaluated from anywhere
        config = replace(config, root=str(Path(config.root).absolute()))
    check_tensorboard(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with joined(config.device) as world:
        if config.twin:
            world.first(RunFolder(twin_of(config)).check)  # refuses now what it would refuse later
        folder = _run(config, world)
        if config.twin:
            _run(twin_of(config), world)
    return folder


def _run(config: TrainConfig, world: World) -> Path:
    folder = RunFolder(config)
    if world.first(folder.check) == "finished":
        if world.rank == 0 and config.progress != "none":
            print(f"{folder.path} has finished before; there is nothing to do", flush=True)
        return folder.path
    try:
        trainer = Trainer(config, folder, world)
        with caught() as signals:
            trainer.fit(signals)
    finally:
        folder.release()
    return folder.path


def mean_of(parts: Sequence[Elbo]) -> Elbo:
    """The numbers of a step from those of its iterations."""
    loss, nll, kl = (torch.stack(column).mean() for column in zip(*((e.loss, e.nll, e.kl) for e in parts), strict=True))
    return Elbo(loss, nll, kl)


class Trainer:
    """A run: the learner, where it stands, and what is written of it.

    Args:
        config: the options.
        folder: where the run is kept.
        world: of processes.
    """

    def __init__(self, config: TrainConfig, folder: RunFolder, world: World) -> None:
        self.config, self.folder, self.world = config, folder, world
        self.task = Task.of(config, world)
        self.learner = Learner(config, self.task, world)
        self.position = Position()
        self.score = "accuracy" if self.task.facts.classes else "rmse"
        self.pending: dict[str, Any] | None = None  # the best model, while it could not be written
        found = world.first(self._begin)
        self.good = None if found is None else found.path  # the last checkpoint
        if found is not None:
            self._restore(found)
        self.display = display_of(config, self.task.batches, self.position.epoch, visible=world.rank == 0)
        if found is not None:
            self.display.say(f"going on after step {self.step} ({found.path.name})")
            self._write_log()
        self.board = tensorboard(config, folder.path, self.step, world.rank == 0)
        self.written = time.monotonic()

    @property
    def step(self) -> int:
        """How many steps of the run are done."""
        return self.position.epoch * self.task.batches + self.position.batch

    # ---- epochs and steps

    def fit(self, signals: Caught) -> None:
        """All epochs that are left."""
        config = self.config
        try:
            while self.position.epoch < config.epochs and not self._waited_enough():
                if self.position.epoch >= config.deterministic_epochs and self.learner.bayesian is None:
                    self.learner.become_bayesian()
                self._epoch(signals)
                self._close_epoch()
                self._pause(self.world.largest(signals.number))
            self._finish()
        except Diverged:
            self._checkpoint()
            self._note("failed")
            raise
        finally:
            self.display.close()
            self._write("the log of TensorBoard", self.board.close)

    def _waited_enough(self) -> bool:
        return self.config.patience is not None and self.position.waited >= self.config.patience

    def _epoch(self, signals: Caught) -> None:
        p, order = self.position, self.task.order(self.position.epoch)
        self.learner.model.train()
        while p.batch < self.task.batches:
            start = time.perf_counter()
            word = self._step(order[p.batch], signals)
            p.batch += 1
            p.sums.seconds += time.perf_counter() - start
            self.display.step(p.epoch + 1, p.batch, p.sums.loss / p.sums.steps)
            self._pause(word)

    def _step(self, index: Tensor, signals: Caught) -> int:
        """One step; what all processes agree to do after it: 0, 1 for a checkpoint, or the number of a signal."""
        step = self.step
        x, y = self.task.batch(index, step)
        torch.manual_seed(seed_of(self.config.seed, "noise", step, self.world.rank))
        self.learner.remember()
        word, parts = 0, []
        for _ in range(self.learner.iterations):
            e, failure = None, "the loss of another process is not finite"
            try:
                with checks.at_once():  # its loss is read at every step anyway
                    e = self.learner.objective(x, y, step)
            except McreparError as error:
                failure = f"{error.asked}: {error.why}"
            due = self.world.rank == 0 and time.monotonic() - self.written >= 60 * self.config.checkpoint_minutes
            word = self.world.largest(FAILED if e is None else signals.number or int(due))
            if e is None or word == FAILED:
                raise self._diverged(failure)
            parts.append(self.learner.backward(e))
        wrong = self.learner.descend(step)
        if wrong is not None:
            raise self._diverged(f"the gradient of {wrong} is not finite")
        self._count(mean_of(parts), y)
        return word

    def _diverged(self, why: str) -> Diverged:
        self.learner.undo()
        where = f"epoch {self.position.epoch + 1}, step {self.step + 1}"
        kept = f"the state before that step is kept in {self.folder.path / 'checkpoints'}"
        return Diverged(where, why, f"a smaller --lr, or --clip 1; {kept}")

    def _count(self, e: Elbo, y: Tensor) -> None:
        sums, likelihood = self.position.sums, self.learner.likelihood
        mean = likelihood.mean(self.learner.output.float())
        sums.steps += 1
        sums.data += mean[:, 0].numel()  # of examples, or of voxels
        sums.loss += e.loss.item()
        sums.nll += e.nll.item()
        sums.kl += e.kl.item()
        sums.score += total_score(likelihood, mean, y)

    # ---- the end of an epoch

    def _close_epoch(self) -> None:
        """Validate, write a row, keep the best."""
        p, start, learner = self.position, time.perf_counter(), self.learner
        total = Sums(*(sum(column) for column in zip(*self.world.gather(astuple(p.sums)), strict=True)))
        row: Row = {"epoch": p.epoch + 1, "step": self.step}
        row |= {"loss": total.loss / total.steps, "nll": total.nll / total.steps, "kl": total.kl / total.steps}
        row |= {"beta": learner.beta(self.step - 1), "lr": learner.rates(self.step - 1)[0]}
        row[self.score] = mean_score(learner.likelihood, total.score, total.data)
        learner.share_statistics()
        best = self._validate(row)
        row["seconds"] = p.sums.seconds + time.perf_counter() - start
        p.epoch, p.batch, p.sums = p.epoch + 1, 0, Sums()
        p.rows.append(row)
        self._store(best)
        self._write_log()
        self.display.row(row, self.config.epochs)
        self._write("the log of TensorBoard", lambda: self.board.row(row))

    def _validate(self, row: Row) -> bool:
        """Fill in the validation columns; whether this model is the best so far and such models are kept."""
        p, config, learner = self.position, self.config, self.learner
        if self.task.validation is None:
            return False
        torch.manual_seed(seed_of(config.seed, "validation", p.epoch))  # the same draws on every process
        found = validate(
            learner.net, learner.likelihood, self.task.validation, self.task.plain, config.validation_draws, self.world
        )
        row |= {"val_nll": found.nll, "val_lpd": found.lpd, f"val_{self.score}": found.score}
        if learner.bayesian is None and not config.deterministic:
            return False
        with torch.no_grad():
            kl = 0.0 if learner.bayesian is None else float(learner.bayesian.kl())
        loss = loss_of(found.nll, kl, self.task.facts.data_size, final_beta(config))
        row["val_loss"] = loss
        now = -found.lpd if config.stop_on == "predictive" else loss
        better = now < p.best
        p.best, p.waited = (now, 0) if better else (p.best, p.waited + 1)
        return better and config.patience is not None

    # ---- what is kept

    def _begin(self) -> checkpoint.Found | None:
        facts, net = self.task.facts, self.learner.net
        state = 3 * sum(t.nbytes for t in checkpoint.tensors_of(net).values())  # Adam keeps two numbers for each
        about = {
            "world_size": self.world.size,
            "parameters": sum(p.numel() for p in net.parameters()),
            "source": facts.source,
            "simulated": facts.simulated,
            "data": facts.as_dict(),
        }
        return self.folder.begin(about, state)

    def _restore(self, found: checkpoint.Found) -> None:
        """Go on from a checkpoint; with another number of processes, the first takes the sums of all."""
        self.learner.restore(found.state, found.path)
        self.pending = found.state.get("pending")
        sums = [Sums(*numbers) for numbers in found.state["sums"]]
        if len(sums) != self.world.size:
            total = Sums(*(sum(column) for column in zip(*found.state["sums"], strict=True)))
            sums = [total, *(Sums() for _ in range(self.world.size - 1))]
        self.position = Position(**{**found.state["position"], "sums": sums[self.world.rank]})

    def _checkpoint(self) -> None:
        p, step = self.position, self.step
        state = {
            **self.learner.state(),
            "step": step,
            "position": {**asdict(p), "sums": None},
            "sums": self.world.gather(astuple(p.sums)),
            "pending": self.pending,
            "options": self.config.plain(),
            "run": self.folder.known,
        }
        place = self.folder.path / "checkpoints"

        def write() -> None:
            self.good = checkpoint.write(place, step, state, self.good)

        self._write(f"the checkpoint of step {step}", write)
        self.written = time.monotonic()

    def _store(self, best: bool) -> bool:
        """Write the model where it is the best; one that could not be written is kept, and tried again here."""
        place, kept = self.folder.path / "model", None if best else self.pending
        if best or kept is not None:
            done = self._write("the model", lambda: self.learner.save(place, kept))
            self.pending = None if done else kept or self.learner.copy()
        return self.pending is None

    def _store_last(self) -> bool:
        """The model of the last epoch, unless there is a best one; and its norm statistics."""
        last = self.config.patience is None or math.isinf(self.position.best)  # no epoch was better than none
        place = self.folder.path / "model"
        return self._store(last) and self._write("the model", lambda: self.learner.pool_statistics(place))

    def _write_log(self) -> bool:
        path = self.folder.path / "log.csv"
        return self._write("log.csv", lambda: write_log(path, self.position.rows, self.score))

    def _write(self, what: str, work: Callable[[], object]) -> bool:
        """Do it on the first process; a disk that is full costs what was to be written, not what is there."""
        if self.world.rank == 0:
            try:
                work()
            except (OSError, McreparError) as error:
                why = error.why if isinstance(error, McreparError) else error.strerror or error
                self.display.warn(f"{what} was not written ({why}); what was there before is kept, training goes on")
                return False
        return True

    def _pause(self, word: int) -> None:
        """A checkpoint where one is due, and the end where a signal came."""
        if not word:
            return
        self._checkpoint()
        if word > 1:
            self._note("stopped")
            where = f"epoch {self.position.epoch + 1}, after step {self.step}"
            again = f"mcrepar train --resume --out {self.folder.path}"
            raise Stopped(word, f"stopped in {where}; {again} goes on from there")

    def _finish(self) -> None:
        """A last checkpoint, the model and the log; a run that could not store them has not finished."""
        self._checkpoint()
        stored = {"model": self._store_last(), "log.csv": self._write_log()}
        stored["run.json"] = all(stored.values()) and self._note("finished")
        if missing := [name for name, done in stored.items() if not done]:
            self._note("failed")
            again = f"mcrepar train --resume --out {self.folder.path}, once there is space"
            raise ParameterError(f"{self.folder.path / missing[0]}", "it could not be written", again)
        if self.world.rank == 0:
            try:
                sentences = self.learner.advice()
            except (RuntimeError, ValueError) as error:  # the run has finished all the same
                sentences = (f"the posterior could not be diagnosed ({type(error).__name__}: {error})",)
            for sentence in sentences:
                self.display.warn(sentence)

    def _note(self, status: str) -> bool:
        return self._write("run.json", lambda: self.folder.note(status=status))
