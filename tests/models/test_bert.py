"""BERT from local files: what is loaded, what is trained, what travels, and files that are no good."""

import json
import logging

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra `text`")

import muster
from fixtures.bert import CONFIG, PIECES, write_bert
from muster.core.errors import ConfigError, DataError
from muster.core.parameters import FlatModel, in_training, spec_of
from muster.data.wordpiece import Vocabulary
from muster.experiment.components import build_data
from muster.experiment.features import with_features
from muster.experiment.networks import state_of
from muster.experiment.parts import build_ingredients
from muster.models import build_model
from muster.models.flops import training_flops
from muster.models.freezing import agrees, split
from muster.results.store import Store
from muster.server.loop import Observer

LENGTH = 12
TEXTS = ["Where is my card?", "", "TOP UP the accounts", "please please please please please please please please"]
#: The head's: 16 × 3 weights and 3 shifts.
HEAD = 51


def build(folder, **options):
    return build_model("bert", (LENGTH,), 3, {"folder": str(folder), **options}, seed=1)


def tokens(folder):
    return torch.from_numpy(Vocabulary.of(folder).ids(TEXTS, LENGTH)).long()


def trained(model):
    return [entry.name for entry in spec_of(model).parameters]


# --- what is computed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_vectors_of_texts_are_those_of_the_library(tiny_bert, pooling):
    from transformers import BertModel

    ids = tokens(tiny_bert)
    theirs = BertModel.from_pretrained(tiny_bert, local_files_only=True).eval()
    found = theirs(ids, attention_mask=(ids != 0).long())
    expected = found.pooler_output
    if pooling == "mean":
        expected = torch.stack(
            [states[row != 0].mean(dim=0) for states, row in zip(found.last_hidden_state, ids, strict=True)]
        )
    ours = build(tiny_bert, pooling=pooling).eval()
    torch.testing.assert_close(ours.encoder(ids), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours(ids), ours.head(expected), atol=1e-4, rtol=1e-4)


def test_padding_changes_nothing(tiny_bert):
    model, ids = build(tiny_bert, pooling="mean").eval(), tokens(tiny_bert)
    longer = torch.nn.functional.pad(ids, (0, 6))
    torch.testing.assert_close(model(ids), model(longer), atol=1e-6, rtol=1e-5)
    # A short text gives the same alone and beside a long one.
    torch.testing.assert_close(model(ids[:1]), model(ids)[:1], atol=1e-6, rtol=1e-5)


def test_older_files_are_understood(tiny_bert, tmp_path):
    """A pre-training checkpoint as a pickle: names begin with `bert.`, scale and shift are gamma and beta."""
    from safetensors.torch import load_file

    state = load_file(tiny_bert / "model.safetensors")
    older = {f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma"): t for name, t in state.items()}
    older = {name.replace("LayerNorm.bias", "LayerNorm.beta"): t for name, t in older.items()}
    older |= {"cls.predictions.bias": torch.zeros(3), "bert.embeddings.position_ids": torch.arange(24)[None]}
    expected = build(tiny_bert).eval()(tokens(tiny_bert))
    (tiny_bert / "model.safetensors").unlink()
    torch.save(older, tiny_bert / "pytorch_model.bin")
    assert torch.equal(build(tiny_bert).eval()(tokens(tiny_bert)), expected)


def test_what_a_text_costs_is_counted(tiny_bert):
    sample = torch.zeros((1, LENGTH), dtype=torch.long)
    whole, last = (training_flops(build(tiny_bert, **options), sample) for options in ({}, {"trained_layers": 1}))
    # Of the products of a layer with 16 × 16 (four) and 16 × 32 (two) weights, three layers, three passes.
    products = 2 * LENGTH * (4 * 16 * 16 + 2 * 16 * 32)
    assert whole > 3 * 3 * products
    assert 3 * products + 2 * products < last < whole


def test_the_head_is_drawn_from_the_seed_alone(tiny_bert):
    first, second = build(tiny_bert, lora_rank=2), build(tiny_bert, lora_rank=2)
    assert np.array_equal(FlatModel(first).vector(), FlatModel(second).vector())
    other = build_model("bert", (LENGTH,), 3, {"folder": str(tiny_bert)}, seed=2)
    assert not torch.equal(other.head[1].weight, first.head[1].weight)


# --- what is trained, and travels ----------------------------------------------------------------------------


def test_everything_trains_unless_told_otherwise(tiny_bert):
    model = build(tiny_bert)
    assert len(trained(model)) == len(list(model.parameters()))
    assert spec_of(model).frozen == ""


def test_the_last_layers_with_the_pooler_and_the_head(tiny_bert):
    names = trained(build(tiny_bert, trained_layers=1))
    assert {name.split(".")[4] for name in names if ".layer." in name} == {"2"}
    assert [name for name in names if ".layer." not in name] == [
        "encoder.bert.pooler.dense.weight",
        "encoder.bert.pooler.dense.bias",
        "head.1.weight",
        "head.1.bias",
    ]
    assert trained(build(tiny_bert, trained_layers=0)) == ["head.1.weight", "head.1.bias"]


def test_adapters_alone_travel(tiny_bert):
    model = build(tiny_bert, lora_rank=2)
    spec = spec_of(model)
    names = [entry.name for entry in spec.entries]
    assert all("lora_" in name or name.startswith("head.") for name in names)
    # Two matrices of 16 × 2 beside query and value of three layers.
    assert spec.size == 3 * 2 * 2 * 16 * 2 + HEAD
    last = spec_of(build(tiny_bert, lora_rank=2, trained_layers=1, lora_targets=["query", "key", "value"]))
    assert last.size == 3 * 2 * 16 * 2 + HEAD


def test_adapters_begin_as_nothing(tiny_bert):
    ids = tokens(tiny_bert)
    plain, adapted = build(tiny_bert).eval(), build(tiny_bert, lora_rank=4).eval()
    assert torch.equal(plain.encoder(ids), adapted.encoder(ids))


def test_frozen_layers_do_not_drop(tiny_bert):
    model = in_training(build(tiny_bert, trained_layers=1))
    assert not model.encoder.bert.embeddings.training
    assert [layer.training for layer in model.encoder.bert.encoder.layer] == [False, False, True]
    assert model.head.training


@pytest.mark.parametrize("options", [{"trained_layers": 1}, {"lora_rank": 2, "trained_layers": 2}, {}])
def test_a_federation_gives_the_same_bits_with_any_number_of_workers(bert_experiment, options):
    results = [muster.run(bert_experiment(**options), workers=workers) for workers in (0, 1, 2)]
    for other in results[1:]:
        assert np.array_equal(results[0].parameters, other.parameters)
        assert results[0].metrics[-1]["loss"] == other.metrics[-1]["loss"]


@pytest.mark.parametrize("options", [{"trained_layers": 1}, {"lora_rank": 2}])
def test_what_is_frozen_stays_and_is_not_booked(bert_experiment, options):
    experiment = bert_experiment(**options)
    before = build_ingredients(experiment).module
    result = muster.run(experiment, workers=0)
    after, spec = result.model(), result.spec
    moved = {name for name, p in after.named_parameters() if not torch.equal(p, before.get_parameter(name))}
    assert moved
    assert moved <= {entry.name for entry in spec.entries}
    # Two rounds with three clients: each gets the travelling part and sends it back.
    assert result.ledger.total().bytes_down == result.ledger.total().bytes_up == 2 * 3 * spec.bytes
    assert spec.size < sum(p.numel() for p in after.parameters()) / 2
    # As a file it is whole.
    assert state_of(result).keys() == after.state_dict().keys()


def test_it_learns(bert_experiment):
    sections = {"rounds": 8, "training": {"lr": 0.01, "optimizer": "adam", "batch_size": 8, "epochs": 3}}
    result = muster.run(bert_experiment(sections), workers=0)
    assert result.final("accuracy") > 0.9


def test_a_run_goes_on_where_it_stopped(bert_experiment, tmp_path):
    whole = muster.run(bert_experiment({"rounds": 3}, lora_rank=2, trained_layers=1), workers=0)

    class StopAfterOne(Observer):
        def wants_stop(self):
            return True

    experiment = bert_experiment({"rounds": 3}, lora_rank=2, trained_layers=1)
    stopped = muster.run(experiment, workers=0, store=tmp_path / "store", observers=[StopAfterOne()])
    assert len(stopped.records) == 1
    resumed = muster.run(experiment, workers=0, store=tmp_path / "store", resume=True)
    assert np.array_equal(whole.parameters, resumed.parameters)


def test_a_result_is_not_put_on_other_weights(bert_experiment, tiny_bert, tmp_path):
    muster.run(bert_experiment(trained_layers=1), workers=0, store=tmp_path / "store")
    write_bert(tiny_bert, seed=5)
    with Store(tmp_path / "store") as store:
        (result,) = store.results()
    with pytest.raises(ConfigError, match="frozen parts of the network BertClassifier are not those of"):
        result.model()


# --- frozen layers are computed once -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"trained_layers": 1},
        {"trained_layers": 1, "pooling": "mean"},
        {"trained_layers": 2, "lora_rank": 2},
        {"trained_layers": 0},
    ],
)
def test_the_halves_are_the_whole(tiny_bert, options):
    model = build(tiny_bert, **options)
    parts = split(model)
    assert agrees(model, parts, tokens(tiny_bert))
    # The trained half is the same to a server: names, order, and what is frozen elsewhere.
    assert spec_of(parts.rest) == spec_of(model)
    assert np.array_equal(FlatModel(parts.rest).vector(), FlatModel(model).vector())
    assert sum(p.numel() for p in parts.rest.parameters() if not p.requires_grad) < 3 * 16 * 16 * 6 * 2


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}])
def test_nothing_to_compute_once_where_all_layers_train(tiny_bert, options):
    assert split(build(tiny_bert, **options)) is None


def test_training_on_cached_states_is_the_training(bert_experiment, monkeypatch, caplog):
    training = {"lr": 0.05, "batch_size": 8, "epochs": 2}
    experiment = bert_experiment({"training": training}, trained_layers=1)
    with caplog.at_level(logging.INFO):
        cached = muster.run(experiment, workers=0)
    assert "computed once" in caplog.text
    monkeypatch.setattr("muster.experiment.parts.with_features", lambda data, module, **_: (data, module))
    plain = muster.run(experiment, workers=0)
    # Attention drops, so the draws are the same only if the steps are.
    np.testing.assert_allclose(cached.parameters, plain.parameters, atol=2e-5)
    assert cached.spec == plain.spec


def test_features_of_other_weights_or_texts_are_not_taken_for_these(bert_experiment, tiny_bert):
    experiment = bert_experiment(trained_layers=0)
    data, module = build_data(experiment), build_ingredients(experiment).module
    first, _ = with_features(data, module, workers=0)
    write_bert(tiny_bert, seed=7)
    second, _ = with_features(data, build_ingredients(experiment).module, workers=0)
    assert not np.array_equal(first.dataset.train.features, second.dataset.train.features)
    third, _ = with_features(data, module, workers=2)
    assert np.array_equal(first.dataset.train.features, third.dataset.train.features)


# --- what is no good -----------------------------------------------------------------------------------------


def spoil(folder, what):
    config, weights = folder / "config.json", folder / "model.safetensors"
    match what:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "truncated header":
            weights.write_bytes(weights.read_bytes()[:50])
        case "truncated pickle":
            from safetensors.torch import load_file

            torch.save(load_file(weights), folder / "pytorch_model.bin")
            weights.unlink()
            whole = (folder / "pytorch_model.bin").read_bytes()
            (folder / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
        case "no weights":
            weights.unlink()
        case "more layers":
            config.write_text(json.dumps(CONFIG | {"num_hidden_layers": 4}))
        case "wider":
            config.write_text(json.dumps(CONFIG | {"intermediate_size": 64}))
        case "another kind":
            config.write_text(json.dumps(CONFIG | {"model_type": "gpt2"}))
        case "no config":
            config.unlink()
        case "damaged config":
            config.write_text("{")
        case "left to right":
            config.write_text(json.dumps(CONFIG | {"is_decoder": True}))
        case "distances":
            config.write_text(json.dumps(CONFIG | {"position_embedding_type": "relative_key"}))
        case "quantised":
            from safetensors.torch import load_file, save_file

            save_file({name: (9 * t).to(torch.int8) for name, t in load_file(weights).items()}, weights)
        case "another vocabulary":
            (folder / "vocab.txt").write_text("\n".join((*PIECES, "more")))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("truncated", r"model\.safetensors' is not a file of weights"),
        ("truncated header", r"model\.safetensors' is not a file of weights"),
        ("truncated pickle", r"pytorch_model\.bin' is not a file of weights: it is cut off"),
        ("no weights", r"no weights in"),
        ("more layers", r"lack 'encoder\.layer\.3"),
        ("wider", r"another shape of 'encoder\.layer\.0\.intermediate"),
        ("another kind", r"type 'gpt2'"),
        # Tensors of the same names and shapes, which would be taken for what they are not.
        ("left to right", r"config\.json: is_decoder is True"),
        ("distances", r"position_embedding_type is 'relative_key'"),
        ("quantised", r"hold whole numbers where the model has fractions: '.*' is int8"),
        ("no config", r"cannot read .*config\.json"),
        ("damaged config", r"cannot read .*config\.json"),
        ("another vocabulary", r"vocab\.txt has 21 word pieces, config\.json says 20"),
    ],
)
def test_bad_files_are_one_clear_message(tiny_bert, what, message):
    spoil(tiny_bert, what)
    with pytest.raises(ConfigError, match=message):
        build(tiny_bert)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trained_layers": 4}, "0 to 3"),
        ({"lora_rank": 2, "lora_targets": ["values"]}, "query, key, value"),
        ({"lora_rank": 2, "trained_layers": 0}, "in 0 layers"),
        ({"lora_rank": -1}, "rank of 0"),
        ({"folder": "/nowhere"}, "no folder '/nowhere'"),
    ],
)
def test_options_that_make_no_sense(tiny_bert, options, message):
    with pytest.raises(ConfigError, match=message):
        build_model("bert", (LENGTH,), 3, {"folder": str(tiny_bert)} | options)


def test_texts_that_are_too_long(tiny_bert):
    with pytest.raises(ConfigError, match=r"samples of 25 tokens[\s\S]*at most 24[\s\S]*'wordpiece'"):
        build_model("bert", (25,), 3, {"folder": str(tiny_bert)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"encoder": "words"}, "another vocabulary than the model's"),
        ({"encoder": "tfidf", "width": 12}, "the model takes token ids"),
    ],
)
def test_ids_of_another_vocabulary_are_refused(bert_experiment, data, message):
    experiment = bert_experiment()
    experiment.data |= data
    with pytest.raises(DataError, match=message):
        muster.run(experiment, workers=0)


def test_own_ids_must_be_tokens_of_the_model(tiny_bert):
    ids = np.full((30, 5), 3)
    ids[7, 2] = len(PIECES)
    data = muster.data.from_arrays(ids, np.arange(30) % 3, clients=np.arange(30) % 5, tokens=True)
    with pytest.raises(DataError, match=r"token ids go from 3 to 20[\s\S]*0 to 19"):
        muster.run(muster.Experiment(data=data, model={"name": "bert", "folder": str(tiny_bert)}), workers=0)


@pytest.mark.parametrize(
    "wrong", [{"hidden_act": "none"}, {"num_attention_heads": 3}, {"hidden_size": "16"}, {"hidden_size": -4}]
)
def test_a_config_that_describes_no_bert(tiny_bert, wrong):
    (tiny_bert / "config.json").write_text(json.dumps(CONFIG | wrong))
    with pytest.raises(ConfigError, match=r"config\.json describes no BERT that can be built"):
        build(tiny_bert)


def test_pretrained_weights_are_not_drawn_again(tiny_bert):
    with pytest.raises(ConfigError, match=r"model\.init = 'xavier' would draw the pretrained weights"):
        build(tiny_bert, init="xavier")


@pytest.mark.parametrize("option", ["lora_rank", "trained_layers"])
def test_only_one_option_says_what_is_trained(tiny_bert, option):
    with pytest.raises(ConfigError, match=rf"model\.freeze and model\.{option} both say what is trained"):
        build(tiny_bert, freeze="backbone", **{option: 1})
    assert spec_of(build(tiny_bert, freeze="backbone")).size == HEAD
