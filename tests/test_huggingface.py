"""The bridge to transformers.Trainer, with the real package and its default arguments."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import mcrepar

pytest.importorskip("transformers", reason="transformers is not installed: pip install mcrepar[huggingface]")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install mcrepar[huggingface]")
import transformers as hf

from mcrepar.huggingface import _pooled, trainer_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, on pinned memory and the like
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20}


def bert(labels=3):
    torch.manual_seed(0)
    return hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=labels))


def examples(n=24):
    tokens = torch.randint(3, 20, (n, 6), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row[0] % 3, "comment": "a column that no model takes"} for row in tokens]


def stacked(data):
    return torch.stack([row["input_ids"] for row in data]), torch.stack([row["labels"] for row in data])


def trained(tmp_path, model, **options):
    arguments = hf.TrainingArguments(str(tmp_path), disable_tqdm=True, **options)
    return hf.Trainer(model, arguments, train_dataset=examples(), eval_dataset=examples())


def test_an_elbo_takes_a_model_as_it_is():
    bnn, (tokens, y) = mcrepar.bayesian(bert(), "normal"), stacked(examples())
    e = mcrepar.elbo(bnn, "categorical", {"input_ids": tokens}, y, data_size=100, output="logits")
    e.loss.backward()
    assert e.nll.item() == pytest.approx(math.log(3), rel=0.2)
    p = mcrepar.predict(bnn, {"input_ids": tokens}, draws=3, likelihood="categorical", output="logits")
    assert p.probs.shape == (24, 3)


def test_trainer_with_default_arguments(tmp_path):
    model = trainer_model(bert(), data_size=24, posterior="normal", draws=4)
    t = trained(tmp_path, model)
    before = model.bnn.mean()["classifier.weight"].clone()
    t.train()
    assert not torch.equal(before, model.bnn.mean()["classifier.weight"])
    found = t.evaluate()
    assert found["eval_loss"] == pytest.approx(math.log(3), rel=0.3)
    out = t.predict(examples())
    assert out.predictions.shape == (24, 3)
    torch.testing.assert_close(torch.tensor(out.predictions).exp().sum(1), torch.ones(24), atol=1e-5, rtol=0)
    assert out.label_ids.tolist() == stacked(examples())[1].tolist()


def test_it_learns_and_resumes(tmp_path):
    """Rates of their own for scales, checkpoints, and the best of them at the end."""
    options = {"num_train_epochs": 8, "eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1,
               "load_best_model_at_end": True}  # fmt: skip
    model = trainer_model(bert(), data_size=24, beta=0.0, posterior="normal", initial_std=0.01)
    t = trained(tmp_path, model, **options)
    t.optimizer = torch.optim.Adam(mcrepar.optim.groups(model, 1e-2))
    t.train()
    assert t.evaluate()["eval_loss"] < 0.7 * math.log(3)
    other = trainer_model(bert(), data_size=24, beta=0.0, posterior="normal", initial_std=0.01)
    resumed = trained(tmp_path, other, **{**options, "num_train_epochs": 9})
    resumed.create_optimizer_and_scheduler(27)
    resumed.optimizer = torch.optim.Adam(mcrepar.optim.groups(other, 1e-2))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.epoch == 9
    assert resumed.evaluate()["eval_loss"] < 0.7 * math.log(3)


def test_the_loss_is_the_elbo_and_a_schedule_counts_steps():
    tokens, y = stacked(examples())
    model = trainer_model(bert(), data_size=50, beta=mcrepar.kl_weight("linear", steps=10), posterior="normal").train()
    model.bnn.eval()  # without dropout

    def loss():
        torch.manual_seed(3)
        return model(input_ids=tokens, labels=y)["loss"]

    first, second = loss(), loss()
    kl = mcrepar.kl(model.bnn)
    torch.testing.assert_close(second - first, 0.1 * kl / 50, rtol=1e-3, atol=1e-4)
    torch.manual_seed(3)
    nll = mcrepar.elbo(model.bnn, "categorical", {"input_ids": tokens}, y, data_size=50, beta=0.0, output="logits").nll
    torch.testing.assert_close(first, nll)


def test_evaluation_pools_probabilities_over_draws():
    tokens, y = stacked(examples())
    model = trainer_model(bert(), data_size=50, posterior="normal", initial_std=2.0, draws=5).eval()
    torch.manual_seed(4)
    out = model(input_ids=tokens, labels=y)
    torch.manual_seed(4)  # the same draws
    p = mcrepar.predict(model.bnn, {"input_ids": tokens}, 5, likelihood="categorical", output="logits")
    torch.testing.assert_close(out.logits.exp(), p.probs)
    losses = -p.samples.gather(2, y.expand(5, -1)[:, :, None]).log().mean()
    torch.testing.assert_close(out.loss, losses)
    single = trainer_model(bert(1), data_size=50, posterior="normal").eval()
    assert single(input_ids=tokens, labels=torch.zeros(24)).logits.shape == (24, 1)


def deciding(labels, **config):
    """A model whose draws differ much, its inputs, and the logits of three of its draws."""
    torch.manual_seed(0)
    net = hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=labels, **config))
    net.classifier.weight.data *= 100
    model = trainer_model(net, data_size=50, posterior="normal", initial_std=2.0, draws=3).eval()
    tokens = stacked(examples())[0]
    torch.manual_seed(4)
    u = mcrepar.predict(model.bnn, {"input_ids": tokens}, 3, output="logits").samples
    torch.manual_seed(4)
    return model, tokens, u


@pytest.mark.parametrize(
    ("labels", "config"),
    [
        (1, {"problem_type": "multi_label_classification"}),
        (4, {"problem_type": "multi_label_classification"}),
        (4, {}),  # transformers tells it by labels of floating point
    ],
)
def test_evaluation_of_several_labels_averages_their_probabilities(labels, config):
    model, tokens, u = deciding(labels, **config)
    out = model(input_ids=tokens, labels=torch.ones(24, labels))
    torch.testing.assert_close(out.logits.sigmoid(), u.sigmoid().mean(0))


def test_the_logit_of_a_mean_probability_does_not_saturate():
    u = torch.tensor([[200.0, -300.0, 1.0], [210.0, -300.0, 1.0]])
    expected = torch.tensor([200 + math.log(2), -300.0, 1.0])
    torch.testing.assert_close(_pooled(u, "multi_label_classification"), expected)


@pytest.mark.parametrize(("labels", "config"), [(1, {}), (2, {"problem_type": "regression"})])
def test_evaluation_of_a_regression_averages_outputs(labels, config):
    model, tokens, u = deciding(labels, **config)
    torch.testing.assert_close(model(input_ids=tokens, labels=torch.zeros(24, labels)).logits, u.mean(0))


def test_a_loss_that_trainer_makes_of_the_logits_is_refused(tmp_path):
    """Label smoothing takes the labels away, and the KL with them."""
    t = trained(tmp_path, trainer_model(bert(), data_size=24, posterior="normal"), label_smoothing_factor=0.1)
    with pytest.raises(mcrepar.MethodError, match="label_smoothing_factor=0"):
        t.train()
    assert t.evaluate()["eval_loss"] == pytest.approx(math.log(3), rel=0.3)
    model, tokens = t.model, stacked(examples())[0]
    assert model.eval()(input_ids=tokens).logits.shape == (24, 3)
    with torch.no_grad():  # nothing is trained
        assert model.train()(input_ids=tokens).logits.shape == (24, 3)


def test_a_schedule_counts_batches(tmp_path):
    """As its documentation says: the model is not told when the optimizer makes a step."""
    seen = []
    model = trainer_model(bert(), data_size=24, beta=lambda step: seen.append(step) or 0.1, posterior="normal")
    options = {"gradient_accumulation_steps": 4, "max_steps": 2, "per_device_train_batch_size": 2}
    trained(tmp_path, model, **options).train()
    assert seen == list(range(8))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("of_config", [True, False])
def test_a_tuple_where_one_is_asked_for(training, of_config):
    tokens, y = stacked(examples())
    model = trainer_model(bert(), data_size=50, posterior="normal").train(training)
    model.bnn.eval()  # without dropout
    torch.manual_seed(1)
    expected = model(input_ids=tokens, labels=y)
    torch.manual_seed(1)
    if of_config:
        model.config.return_dict = False
    found = model(input_ids=tokens, labels=y, **({} if of_config else {"return_dict": False}))
    assert isinstance(found, tuple)
    for a, b in zip(found, (expected.loss, expected.logits), strict=True):
        torch.testing.assert_close(a, b)


def test_a_model_without_names_for_its_outputs_is_refused():
    class Plain(nn.Linear):
        def forward(self, x, labels):
            return super().forward(x), labels

    model = trainer_model(Plain(2, 2), data_size=3, posterior="normal")
    for training in (True, False):
        with pytest.raises(mcrepar.MethodError, match="returns a tuple"):
            model.train(training)(torch.zeros(1, 2), torch.zeros(1))
    with pytest.raises(mcrepar.MethodError, match="has no gradient checkpointing"):
        model.gradient_checkpointing_enable()


def test_gradient_checkpointing(tmp_path):
    tokens, y = stacked(examples())
    model = trainer_model(bert(), data_size=24, posterior="normal", forward="weights")

    def gradients():
        model.zero_grad()
        torch.manual_seed(2)
        model.train()(input_ids=tokens, labels=y).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    before = gradients()
    trained(tmp_path, model, max_steps=1, gradient_checkpointing=True, learning_rate=0.0).train()
    assert model.bnn.net.is_gradient_checkpointing
    after = gradients()
    assert before.keys() == after.keys()
    for name, gradient in before.items():
        torch.testing.assert_close(after[name], gradient)


def test_a_language_model(tmp_path):
    net = hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=8, vocab_size=20))
    model = trainer_model(net, data_size=24 * 5, posterior="normal")
    data = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in examples()]
    arguments = hf.TrainingArguments(str(tmp_path), disable_tqdm=True, num_train_epochs=1, save_strategy="no")
    t = hf.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    t.train()
    assert t.evaluate()["eval_loss"] == pytest.approx(math.log(20), rel=0.2)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(mcrepar.ParameterError, match="takes no labels"):
        trainer_model(hf.BertModel(hf.BertConfig(**SMALL)), data_size=3)
    with pytest.raises(mcrepar.ParameterError, match="it is Bayesian already"):
        trainer_model(mcrepar.bayesian(bert()), data_size=3, posterior="normal")
    with pytest.raises(mcrepar.ParameterError, match="data_size"):
        trainer_model(bert(), data_size=0)
    with pytest.raises(mcrepar.ParameterError, match="takes no labels"):
        trainer_model(nn.Linear(2, 2), data_size=3)


def test_pooled_logits_of_pixels_are_mean_probabilities():
    u = 3 * torch.randn(5, 2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(_pooled(u, None).softmax(1), u.softmax(2).mean(0))
