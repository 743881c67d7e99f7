"""Hugging Face models for transformers.Trainer: its loss becomes the ELBO's, its evaluation a mean over draws."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn.module import BayesianModule, bayesian, kl
from mcrepar.nn.prediction_passes import evaluating, one_draw
from mcrepar.objective import loss_of
from mcrepar.validation import whole_number

try:
    import transformers  # noqa: F401 (what the modules here are for)
except ImportError as error:
    raise ImportError("mcrepar.huggingface needs transformers: pip install mcrepar[huggingface]") from error


class TrainerModel(nn.Module):
    """A Bayesian Hugging Face model as transformers.Trainer expects one; made by `trainer_model`.

    In training its loss is the model's own plus beta * KL / data_size, with one draw of the weights; in evaluation,
    loss and logits are means over draws: of probabilities, by the `problem_type` of its config, and of the outputs of a
    regression.

    Attributes:
        bnn: the network, for `mcrepar.predict(model.bnn, x, output="logits", ...)` and `mcrepar.save`.
    """

    step: Tensor
    accepts_loss_kwargs = False  # its loss is a mean: Trainer divides it by the steps of gradient accumulation

    def __init__(self, bnn: BayesianModule, data_size: int, beta: float | Callable[[int], float], draws: int) -> None:
        super().__init__()
        self.bnn, self.data_size, self.beta, self.draws = bnn, data_size, beta, draws
        self.config = getattr(bnn.net, "config", None)
        self.main_input_name = getattr(bnn.net, "main_input_name", "input_ids")
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own output, with what was said above for its loss and its logits."""
        asked = kwargs.get("return_dict")
        named = getattr(self.config, "return_dict", True) if asked is None else asked
        if not named:
            kwargs["return_dict"] = True
        out = self._drawn(args, kwargs) if self.training else self._mean(args, kwargs)
        return out if named else tuple(value for value in out.values() if value is not None)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Activation checkpointing of the model, with use_reentrant=False where nothing else is asked for.

        Args:
            gradient_checkpointing_kwargs: of torch.utils.checkpoint.
            options: of the model's own method.
        """
        net: Any = self.bnn.net
        if not hasattr(net, "gradient_checkpointing_enable"):
            why = f"a {type(net).__name__} has no gradient checkpointing"
            raise MethodError("gradient_checkpointing=True", why, "gradient_checkpointing=False")
        how = {"use_reentrant": False, **(gradient_checkpointing_kwargs or {})}
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how, **options)

    def _drawn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = _named(self.bnn.net, self.bnn(*args, **kwargs))
        if out.get("loss") is not None:
            beta = self.beta(int(self.step)) if callable(self.beta) else self.beta
            self.step += 1
            out["loss"] = loss_of(out["loss"], kl(self.bnn), self.data_size, beta)
        elif torch.is_grad_enabled():
            raise MethodError(
                f"a {type(self).__name__} in training without labels",
                "it has no loss to which the KL could be added, and one made of its logits would leave the KL out",
                "Give it labels (with Trainer: label_smoothing_factor=0 and no compute_loss_func, which keep them from "
                "it), call eval() for its outputs, or train model.bnn by mcrepar.elbo.",
            )
        return out

    def _mean(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outs = []
        with evaluating(self.bnn):
            for k in range(self.draws):
                with one_draw(self.bnn, None, k) as call:
                    outs.append(_named(self.bnn.net, call(*args, **kwargs)))
        out = outs[-1]
        if out.get("loss") is not None:
            out["loss"] = torch.stack([o["loss"] for o in outs]).mean()
        logits = [o["logits"] for o in outs if isinstance(o.get("logits"), Tensor)]
        if logits:
            out["logits"] = _pooled(torch.stack(logits), getattr(self.config, "problem_type", None))
        return out


def _named(net: nn.Module, out: Any) -> Any:
    """The output, where it has names."""
    if isinstance(out, Mapping):
        return out
    why = f"the forward of {type(net).__name__} returns a {type(out).__name__}, in which no loss can be told"
    raise MethodError("trainer_model(net)", why, "a model that returns a dict or a ModelOutput with a loss")


def _pooled(logits: Tensor, problem: str | None) -> Tensor:
    """The logits of mean_k p_k over draws, (draws, ..., classes); the mean of a regression's outputs.

    Of images with a class for every pixel they are (draws, batch, classes, height, width).
    One output alone is a regression, as for transformers, where the problem is not said to be another.
    """
    if problem == "multi_label_classification":  # log p - log(1 - p), neither of them rounded
        u = logits.float()
        return logsigmoid(u).logsumexp(0) - logsigmoid(-u).logsumexp(0)
    if problem == "regression" or logits.shape[-1] == 1:
        return logits.mean(0)
    classes = 2 if logits.dim() == 5 else -1
    return logits.float().log_softmax(classes).logsumexp(0) - math.log(len(logits))


def trainer_model(
    net: nn.Module,
    data_size: int,
    *,
    beta: float | Callable[[int], float] = 1.0,
    draws: int = 8,
    **options: Any,
) -> TrainerModel:
    """A model for transformers.Trainer, with its default arguments, evaluation included.

    loss = the model's own + beta * KL(q || p) / data_size

    Args:
        net: a Hugging Face model whose forward takes labels, or a Bayesian neural network made of one.
        data_size: what the model's own loss is a mean over, in the whole training set: the number of examples, or of
            tokens for a language model.
        beta: the weight of the KL, or a schedule such as `kl_weight("linear", steps=1000)`, which counts batches: with
            gradient_accumulation_steps=4 a step of the optimizer is four of its steps.
        draws: of the weights, in an evaluation.
        options: of `bayesian`, where `net` is a plain model.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> config = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    >>> model = trainer_model(BertForSequenceClassification(config), data_size=1000, posterior="normal")
    >>> model(input_ids=torch.ones(2, 4, dtype=torch.long), labels=torch.tensor([0, 1])).loss.backward()
    """
    bnn = net if isinstance(net, BayesianModule) else bayesian(net, **options)
    if isinstance(net, BayesianModule) and options:
        raise ParameterError(f"trainer_model(bnn, {next(iter(options))}=...)", "it is Bayesian already", "no options")
    signature = inspect.signature(bnn.net.forward)
    if not any("label" in name for name in signature.parameters):
        why = f"the forward of {type(bnn.net).__name__} takes no labels, so that it has no loss"
        raise ParameterError("trainer_model(net)", why, "a model with a head, such as one for sequence classification")

    def forward(self: TrainerModel, *args: Any, **kwargs: Any) -> Any:
        return TrainerModel.forward(self, *args, **kwargs)

    # Trainer reads the columns of the data and the names of labels from the signature of the class
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
    kind = type(f"Bayesian{type(bnn.net).__name__}", (TrainerModel,), {"forward": forward})
    made: TrainerModel = kind(bnn, whole_number("data_size", data_size), beta, whole_number("draws", draws))
    return made
