"""BERT (Devlin et al., 2019) from local files: all of it is fine-tuned, or its last layers, or adapters beside
its attention (LoRA: Hu et al., 2022)."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from muster.core.errors import ConfigError, MusterError
from muster.data.wordpiece import VOCABULARY_FILE, Vocabulary, bert_folder
from muster.models.base import models, vector_width
from muster.models.freezing import Split, before_head
from muster.models.weights import check_match, read_state

#: Names of the weights' file, best first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
#: All files of a folder that determine what is computed.
USED_FILES = ("config.json", VOCABULARY_FILE, "tokenizer_config.json", *WEIGHTS)
#: What makes another network of the same tensors: texts read from left to right, positions as distances.
_PLAIN = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
#: What checkpoints hold beside the encoder: heads of other tasks, and positions that follow from the length.
_OTHER = re.compile(r"^(cls|classifier|qa_outputs)\.|^embeddings\.position_ids$|^embeddings\.token_type_ids$")


class BertEncoder(nn.Module):
    """A text's vector: of its first token, through BERT's pooler, or the mean over its tokens."""

    def __init__(self, bert: Any, pooling: Literal["cls", "mean"], padding: int) -> None:
        super().__init__()
        self.bert, self._pooling, self._padding = bert, pooling, padding
        #: Samples are hidden states of frozen layers, not ids (see `upper_half`).
        self._given_states = False

    @property
    def width(self) -> int:
        return int(self.bert.config.hidden_size)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        if self._given_states:
            mask, given = _trimmed(texts[:, :, -1] > 0, texts[:, :, :-1])
            found = self.bert(inputs_embeds=given, attention_mask=_visible(mask))
        else:
            mask, given = _trimmed(texts != self._padding, texts)
            found = self.bert(input_ids=given, attention_mask=_visible(mask))
        if self._pooling == "cls":
            first: torch.Tensor = found.pooler_output
            return first
        weights = mask.unsqueeze(2).float()
        mean: torch.Tensor = (found.last_hidden_state * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1.0)
        return mean

    @property
    def frozen_layers(self) -> int:
        """How many of the first layers nothing is trained in, nor before them."""
        if any(p.requires_grad for p in self.bert.embeddings.parameters()):
            return 0
        trained = [any(p.requires_grad for p in layer.parameters()) for layer in self.bert.encoder.layer]
        return trained.index(True) if True in trained else len(trained)

    def lower_half(self) -> LowerHalf:
        """The embeddings and the frozen layers."""
        bert = copy.deepcopy(self.bert)
        for number in range(self.frozen_layers, len(bert.encoder.layer)):
            bert.encoder.layer[number] = _Skipped()
        bert.pooler = None
        return LowerHalf(bert, self._padding)

    def upper_half(self) -> BertEncoder:
        """The other layers, whose tensors keep their names."""
        bert = copy.deepcopy(self.bert)
        for number in range(self.frozen_layers):
            bert.encoder.layer[number] = _Skipped()
        bert.embeddings = _Given()
        upper = BertEncoder(bert, self._pooling, self._padding)
        upper._given_states = True
        return upper


class LowerHalf(nn.Module):
    """Hidden states after frozen layers, and as one more number for each token whether there is one."""

    def __init__(self, bert: Any, padding: int) -> None:
        super().__init__()
        self.bert, self._padding = bert, padding

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = tokens != self._padding
        states = self.bert(input_ids=tokens, attention_mask=_visible(mask)).last_hidden_state
        return torch.cat([states * mask.unsqueeze(2), mask.unsqueeze(2).float()], dim=2)


class _Skipped(nn.Module):
    """A layer that hands on what it gets."""

    def forward(self, states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return states


class _Given(nn.Module):
    """In the place of embeddings, where states are given."""

    def forward(self, *, inputs_embeds: torch.Tensor, **_: object) -> torch.Tensor:
        return inputs_embeds


class BertClassifier(nn.Module):
    """A BERT, dropout and one dense layer."""

    head_part, final_layer = "head", "head.1"
    pretrained_inside = True
    #: The option that says what is trained; "": everything is.
    frozen_by = ""

    def __init__(self, encoder: BertEncoder, classes: int, dropout: float, vocabulary: str) -> None:
        super().__init__()
        self.encoder = encoder
        last = nn.Linear(encoder.width, classes)
        nn.init.normal_(last.weight, std=encoder.bert.config.initializer_range)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(nn.Dropout(dropout), last)
        #: Which tokens the ids of a sample must stand for, and how many there are.
        self.vocabulary, self.token_count = vocabulary, int(encoder.bert.config.vocab_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(tokens))
        return logits

    def split_frozen(self) -> Split | None:
        if not any(p.requires_grad for p in self.encoder.parameters()):
            return before_head(self)
        if not self.encoder.frozen_layers:
            return None
        rest = copy.copy(self)
        rest._modules = {"encoder": self.encoder.upper_half(), "head": copy.deepcopy(self.head)}
        return Split(self.encoder.lower_half(), rest)


@models.register("bert")
def bert(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    folder: str,
    pooling: Literal["cls", "mean"] = "cls",
    trained_layers: int | None = None,
    lora_rank: int = 0,
    lora_alpha: int = 16,
    lora_dropout: float = 0.0,
    lora_targets: tuple[str, ...] = ("query", "value"),
    dropout: float = 0.1,
) -> nn.Module:
    """BERT with a classification layer, from a folder as the Hugging Face hub has it (bert-base-uncased, MiniLM).

    `folder` holds config.json, vocab.txt and model.safetensors or pytorch_model.bin, or is "minilm". Without other
    options everything is trained; `trained_layers = n` trains the last n layers (0: the classification layer
    alone); `lora_rank = r` trains adapters of that rank beside the attention's `lora_targets`, in those layers.
    """
    length = vector_width("bert", input_shape, "token ids, one-dimensional (data.encoder = 'wordpiece')")
    if not 0 <= dropout < 1 or not 0 <= lora_dropout < 1 or lora_rank < 0 or lora_alpha <= 0:
        raise ConfigError(
            f"bert: dropout {dropout}, lora_rank {lora_rank}, _alpha {lora_alpha}, _dropout {lora_dropout}",
            expected="0 ≤ dropout < 1, a rank of 0 (no adapters) or more, and lora_alpha > 0",
        )
    encoder, vocabulary = pretrained_encoder(folder, length, pooling)
    layers = encoder.bert.config.num_hidden_layers
    if trained_layers is not None and not 0 <= trained_layers <= layers:
        raise ConfigError(f"bert: trained_layers is {trained_layers}", expected=f"0 to {layers}, all layers")
    if lora_rank:
        first = 0 if trained_layers is None else layers - trained_layers
        chosen = range(first, layers)
        add_adapters(encoder.bert, lora_rank, chosen, alpha=lora_alpha, dropout=lora_dropout, targets=lora_targets)
    elif trained_layers is not None:
        train_last_layers(encoder.bert, trained_layers)
    made = BertClassifier(encoder, classes, dropout, vocabulary.digest)
    if lora_rank or trained_layers is not None:
        made.frozen_by = "model.lora_rank" if lora_rank else "model.trained_layers"
    return made


def pretrained_encoder(
    folder: str, length: int, pooling: Literal["cls", "mean"]
) -> tuple[BertEncoder, Vocabulary]:
    """The BERT in a folder, for texts of this length, and the vocabulary whose ids it takes."""
    try:
        from transformers import BertConfig, BertModel
    except ImportError as absent:
        raise ConfigError(
            "the model 'bert' needs the package transformers, which is not installed",
            fix="pip install 'muster-fl[text]'",
        ) from absent
    place = bert_folder(folder, "model.folder")
    try:
        config = BertConfig.from_dict(_config(place))
    except MusterError:
        raise
    except Exception as problem:  # the library raises all sorts of things
        raise _no_bert(place, problem) from problem
    # The plain form of attention: the same on every machine, and PyTorch counts its operations.
    config._attn_implementation = "eager"
    vocabulary = Vocabulary.of(place)
    if len(vocabulary.tokens) != config.vocab_size:
        raise ConfigError(
            f"{place}: vocab.txt has {len(vocabulary.tokens):,} word pieces, "
            f"config.json says {config.vocab_size:,}",
            fix="take all files of the folder from the same model",
        )
    if length > config.max_position_embeddings:
        raise ConfigError(
            f"samples of {length} tokens are too long for the BERT in {place}",
            expected=f"at most {config.max_position_embeddings}",
            fix="set data.encoder = 'wordpiece' and a smaller data.length",
        )
    try:
        made = BertModel(config, add_pooling_layer=pooling == "cls")
    except Exception as problem:
        raise _no_bert(place, problem) from problem
    _load(made, place)
    return BertEncoder(made, pooling, vocabulary.padding), vocabulary


def _config(place: Path) -> dict[str, Any]:
    file = place / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"cannot read {file}: {problem}", expected="the description of a BERT, as JSON"
        ) from None
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind != "bert":
        raise ConfigError(
            f"{file} describes {f'a model of the type {kind!r}' if kind else 'no model'}",
            expected="model_type = 'bert'",
            fix="name the folder of a BERT (bert-base-uncased, MiniLM)",
        )
    for key, plain in _PLAIN.items():
        if values.get(key, plain) != plain:
            raise ConfigError(
                f"{file}: {key} is {values[key]!r}: what is computed here would not be this model",
                expected=f"{plain!r}, as in bert-base-uncased",
                fix="name the folder of an encoder that looks at whole texts (bert-base-uncased, MiniLM)",
            )
    return dict(values)


def _no_bert(place: Path, problem: Exception) -> ConfigError:
    return ConfigError(
        f"{place / 'config.json'} describes no BERT that can be built: {type(problem).__name__}: {problem}",
        fix="take all files of the folder from the same model",
    )


def _load(made: nn.Module, place: Path) -> None:
    """Fill the model from the folder's weights; every tensor of it must be there, in its shape."""
    file = next((place / name for name in WEIGHTS if (place / name).is_file()), None)
    if file is None:
        raise ConfigError(f"no weights in {place}", expected=" or ".join(WEIGHTS))
    wanted = made.state_dict()
    state = {_current_name(name): tensor for name, tensor in read_state(file).items()}
    given = {name: tensor for name, tensor in state.items() if not _OTHER.search(name)}
    if "pooler.dense.weight" not in wanted:
        given = {name: tensor for name, tensor in given.items() if not name.startswith("pooler.")}
    elif "pooler.dense.weight" not in given:
        raise ConfigError(
            f"the weights '{file}' have no pooler", fix='set model.pooling = "mean", which does without'
        )
    check_match(str(file), given, wanted)
    made.load_state_dict(given)


def _current_name(name: str) -> str:
    """Older files call scale and shift of a normalisation gamma and beta, and put `bert.` before every name."""
    name = name.removeprefix("bert.")
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: f"LayerNorm.{_SCALE_AND_SHIFT[m[1]]}", name)


_SCALE_AND_SHIFT = {"gamma": "weight", "beta": "bias"}


def train_last_layers(made: Any, count: int) -> None:
    """Freeze all but the last layers, and the pooler with them where there are none."""
    made.requires_grad_(False)
    for layer in list(made.encoder.layer)[len(made.encoder.layer) - count :]:
        layer.requires_grad_(True)
    if count and made.pooler is not None:
        made.pooler.requires_grad_(True)


def add_adapters(
    made: Any, rank: int, layers: range, *, alpha: int, dropout: float, targets: tuple[str, ...]
) -> None:
    """Freeze all, and put adapters of this rank beside the named products of the attention in these layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as absent:
        raise ConfigError(
            "model.lora_rank needs the package peft, which is not installed", fix="pip install 'muster-fl[text]'"
        ) from absent
    known = ("query", "key", "value")
    if not targets or not set(targets) <= set(known) or not layers:
        raise ConfigError(
            f"bert: lora_targets {list(targets)} in {len(layers)} layers",
            expected=f"some of {', '.join(known)}, in one layer or more",
        )
    lora = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=list(targets),
        layers_to_transform=list(layers),
    )
    inject_adapter_in_model(lora, made)


def _visible(mask: torch.Tensor) -> torch.Tensor | None:
    """Which tokens are looked at, as the library wants it; where only shapes are known, it may not be asked."""
    return None if mask.device.type == "meta" else mask.long()


def _trimmed(mask: torch.Tensor, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Without the columns at the end that are padding in every text of the batch: nothing attends to them."""
    if mask.device.type == "meta":  # shapes alone: nothing is known to be padding
        return mask, given
    used = mask.any(dim=0).nonzero()
    longest = int(used[-1]) + 1 if len(used) else 1
    return mask[:, :longest], given[:, :longest]
