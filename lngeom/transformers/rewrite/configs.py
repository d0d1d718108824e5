"""Options of `config.json` as the `transformers` package reads them: defaults, types, and options without effect.

The families' own options are in `defaults`. The tables here hold what holds for all families (version 5.23).
"""

import difflib
import fnmatch
import math
import sys
from collections.abc import Container, Iterable, Mapping
from typing import Any

from lngeom.transformers.description import Rotary
from lngeom.transformers.rewrite.defaults import DEFAULTS, NOT_NULL, Alias, Derived, Maybe, Pair

TYPED: dict[str, Any] = {
    "initializer_range": 0.02,
    "router_aux_loss_coef": Maybe(float),
    "router_jitter_noise": Maybe(float),
    "*dropout": Maybe(float),
    "*dropout_prob": Maybe(float),
    "*pdrop": Maybe(float),
    "layerdrop": Maybe(float),
    "use_cache": True,
    "output_hidden_states": Maybe(bool),
    "output_attentions": Maybe(bool),
    "output_router_logits": Maybe(bool),
    "slow_but_exact": Maybe(bool),
    "reorder_and_upcast_attn": Maybe(bool),
    "summary_use_proj": Maybe(bool),
    "summary_proj_to_labels": Maybe(bool),
    "pretraining_tp": Maybe(int),
    "chunk_size_feed_forward": Maybe(int),
    "pad_token_id": Maybe(int),
    "bos_token_id": Maybe(int),
    "eos_token_id": Maybe(int),
    "id2label": Maybe(dict),
    "label2id": Maybe(dict),
}
"""Options without effect that have a type all the same: the package loads no config in which they have another."""

UNDECLARED = (
    "rope_theta",
    "rope_local_base_freq",
    "*_multiplier",
    "logits_scaling",
    "rotary_emb_base",
    "partial_rotary_factor",
    "rotary_pct",
    "*dropout*",
    "*pdrop",
    "layerdrop",
)
"""Numbers that may be integers. Where the package's classes declare a float, they refuse 1."""

SIGNED = ("sliding_window", "*_token_id", "pretraining_tp")
"""Numbers of any sign: windows may be out of use."""

FROM_ZERO = (
    *(
        "num_hidden_layers",
        "n_layer",
        "max_window_layers",
        "first_k_dense_replace",
        "sliding_window_pattern",
        "*eps",
        "*epsilon",
        "clip_qkv",
        "chunk_size_feed_forward",
    ),
    *("initializer_range", "initializer_factor", "router_*", "*dropout*", "*pdrop", "layerdrop"),
)
"""Numbers that may be zero. All others must be positive."""

UP_TO_ONE = ("initializer_range", "*dropout", "*dropout_prob", "*pdrop")
"""Numbers that must be at most one."""

UNPADDED = ("gpt2", "gpt_neox", "gptj", "bloom", "codegen", "gpt_bigcode", "gpt_neo", "falcon", "mpt", "whisper")
"""Families whose table of tokens, if there is one, has no row for padding. In others `pad_token_id` must be a row."""

READ = (
    *("is_causal", "attention_chunk_size"),  # masking_utils.py
    *("transformers_weights", "quantization_config", "compression_config"),  # modeling_utils.py, quantizers/auto.py
    *("per_layer_config", "fusion_config", "text_config"),  # configuration_utils.py, fusion_mapping.py
    *("original_max_position_embeddings",),  # modeling_rope_utils.py
)
"""Options that code for all families reads. A value other than null is refused."""

IGNORED = (
    # Names, versions, ids of tokens: PreTrainedConfig, and what tokenizers and generation read.
    *("_name_or_path", "name_or_path", "_commit_hash", "architectures", "model_type", "dtype", "torch_dtype"),
    *("transformers_version", "*_token_id", "tokenizer_class", "prefix", "task_specific_params", "use_cache"),
    *("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task", "return_dict"),
    *("output_hidden_states", "output_attentions", "output_router_logits", "is_encoder_decoder", "torchscript"),
    *("tie_encoder_decoder", "tf_legacy_loss", "use_bfloat16", "chunk_size_feed_forward", "output_past"),
    # Parameters of generation, which PreTrainedConfig.__post_init__ drops (GenerationConfig).
    *("assistant_*", "bad_words_ids", "*suppress_tokens", "diversity_penalty", "do_sample", "early_stopping"),
    *("forced_decoder_ids",),  # Whisper
    *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "*_cutoff", "exponential_decay_length_penalty"),
    *("length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_assistant_tokens*", "num_beam*"),
    *("num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty", "target_lookbehind"),
    *("return_dict_in_generate", "temperature", "top_k", "top_p", "typical_p", "max_new_tokens"),
    # Training only.
    *("*dropout*", "*pdrop", "initializer_range", "init_std", "layerdrop", "gradient_checkpointing", "neftune_*"),
    *("router_aux_loss_coef", "router_jitter_noise", "pretraining_tp", "summary_*", "aux_loss_alpha", "seq_aux"),
    *(
        "qk_head_dim",
        "ep_size",
        "num_nextn_predict_layers",
        "num_mtp_layers",
    ),  # DeepSeek; layers beside the head are refused as arrays
    *("drop_path_rate", "layerscale_value"),  # DINOv2: the stored factors count
    *(
        "num_decoder_layers",
        "scale_decoder_outputs",
        "n_positions",
    ),  # T5: of its decoder, and old
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "decoder_layerdrop"),  # Whisper: of its decoder
    *("encoder_layerdrop", "scale_embedding", "max_target_positions", "median_filter_width", "apply_spec_augment"),
    *("mask_time_*", "mask_feature_*", "use_weighted_layer_sum", "classifier_proj_size"),
    *("tie_word_embeddings",),  # T5 always ties its tables, vision transformers have none; a table says who reads it
    # What other classes of a family read: masked images, feature maps.
    *("encoder_stride", "apply_layernorm", "reshape_hidden_states", "out_features", "out_indices", "stage_names"),
    *("_out_features", "_out_indices"),
    # How the same numbers are computed.
    *("slow_but_exact", "use_flash_attention_2", "experts_implementation", "reorder_and_upcast_attn", "_attn_*"),
    *("_flash_attn_*", "use_flash_attn", "attn_impl"),
    *("attn_implementation", "_experts_implementation*", "cache_implementation", "attention_softmax_in_fp32"),
    *("masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add*", "offset_alibi", "seq_length"),
    # Written by others, read by no code of these families.
    *("n_ctx", "n_special", "predict_special_tokens", "unk_index"),  # OpenAI's GPT-2
    *("directionality", "pooler_*"),  # Google's BERT (bert-base-chinese, bert-base-multilingual)
    *("max_sequence_length", "is_llama_config", "rope_interleaved"),  # LLaMA 1, SmolLM
    *("sliding_window_size", "hidden_activation", "hidden_act"),  # Gemma's files; a table says which is read
    *("rope_theta", "partial_rotary_factor", "is_decoder", "scale_attn_weights"),  # a table says who reads them
    *("attn_logit_softcapping", "num_key_value_heads"),  # Gemma 3 and StarCoder 1 have them, and do not use them
    *("emb_pdrop", "embedding_fraction", "expansion_ratio", "init_device", "learned_pos_emb", "no_bias", "norm_type"),
    *("logit_scale", "verbose"),  # MPT; a table says who reads the scale
    *("initializer_cutoff_factor", "classifier_pooling", "deterministic_flash_attn", "sparse_pred*"),  # ModernBERT
    *("scale_attention_softmax_in_fp32", "sinusoidal_pos_embds", "task_type_vocab_size"),
    *("flash_norm", "flashnorm_folded", "lngeom_online"),  # of rewritten models; `layouts` reads them
    *(
        "_sliding_window_pattern",
        "unsloth_*",
        "transformers.js_config",
        "use_mrope",
        "model_max_length",
        "tokenizer_model_max_length",
    ),
)
"""Options without effect on the function in use. What a family's table names is read nevertheless."""

ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "activation")
"""Names of the option with the activation; a family has one of them."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
    "linear": "identity",
}
"""Names of activations in configs."""

_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", dict: "an object", list: "a list"}


class Options:
    """The options of a config.

    Args:
        kind: the family.
        config: the config.
        names: names of the arrays on disk.

    Raises:
        ValueError: naming an option of another type than that of the family, or two names of one option that differ.
    """

    def __init__(self, kind: str, config: Mapping[str, Any], names: Container[str]) -> None:
        self.kind, self.config, self.names = kind, config, names
        self._table = DEFAULTS[kind]
        self._values: dict[str, Any] = {}
        for name, entry in self._table.items():
            if not isinstance(entry, Alias):
                self._values[name] = _checked(name, config[name], entry) if name in config else _default(entry)
        for name, entry in self._table.items():
            if isinstance(entry, Alias) and name in config and (name, config[name]) != ("n_embed", None):
                value = _checked(name, config[name], self._table[entry.name])
                if entry.name in config and self._values[entry.name] != value:
                    raise ValueError(
                        f"options {entry.name!r} = {self._values[entry.name]!r} and {name!r} = {value!r} are two names "
                        "of one option: keep one"
                    )
                self._values[entry.name] = value
        for name in (*NOT_NULL.get(kind, ()), "num_labels"):
            if name in config and config[name] is None:
                raise ValueError(f"option {name!r} must not be null: the transformers package loads no such config")
        for name, value in config.items():
            for pattern in TYPED if name not in self._table else ():
                if fnmatch.fnmatchcase(name, pattern):
                    for each in value if name == "eos_token_id" and isinstance(value, list) else [value]:
                        _checked(name, each, TYPED[pattern])
        padding, rows = config.get("pad_token_id"), self._values.get("vocab_size")
        if kind not in UNPADDED and padding is not None and rows is not None and not -rows <= padding < rows:
            raise ValueError(f"option 'pad_token_id' = {padding} is no row of the {rows} that 'vocab_size' says")

    def get(self, name: str) -> Any:
        """The value of an option."""
        return self._values[name]

    def given(self, name: str) -> bool:
        """Whether the config has the option."""
        return name in self.config

    def first(self, *names: str) -> Any:
        """The value of the one of these options that the family has; None if it has none of them."""
        return next((self._values[name] for name in names if name in self._values), None)

    def which(self, *names: str) -> str:
        """The one of these options that the family has."""
        return next(name for name in names if name in self._values)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses other values of an option.

        Raises:
            ValueError: naming the option and its value.
        """
        if (found := self.get(name)) not in allowed:
            raise ValueError(f"option {name!r} = {found!r} is not covered (covered: {', '.join(map(repr, allowed))})")

    def pair(self, name: str) -> tuple[int, int]:
        """Height and width, of an option that is one number for both or a list of two."""
        found = self.get(name)
        return (found[0], found[1]) if isinstance(found, list) else (found, found)

    @property
    def labels(self) -> int:
        """How many labels a head has: as `id2label` says, else `num_labels`, else 2."""
        named, count = self.config.get("id2label"), self.config.get("num_labels")
        if named is None:
            return 2 if count is None else count
        if count is not None and count != len(named):
            raise ValueError(f"options 'num_labels' = {count} and 'id2label', which has {len(named)}, do not agree")
        return len(named)

    def activation(self, name: str | None = None) -> Any:
        """The activation that an option names; None: that of the networks.

        Raises:
            ValueError: if its name is unknown.
        """
        found = self.get(name := name or self.which(*ACTIVATION))
        if found not in ACTIVATIONS:
            raise ValueError(f"option {name!r} = {found!r} is not covered (covered: {', '.join(ACTIVATIONS)})")
        return ACTIVATIONS[found]

    def check(self, ignore: Iterable[str] = ()) -> None:
        """Refuses options that are not known.

        Args:
            ignore: options that the user says have no effect.

        Raises:
            ValueError: naming the first one, or an option to ignore that has an effect.
        """
        ignore = tuple(ignore)
        for name in ignore:
            if name in self._table or name in READ:
                raise ValueError(f"option {name!r} changes what the transformers package loads, and cannot be ignored")
            if name not in self.config:
                near = difflib.get_close_matches(name, self.config, 1)
                guess = f" (did you mean {near[0]!r}?)" if near else ""
                raise ValueError(f"config.json has no option {name!r} to ignore{guess}")
        strange = unknown(self.config, self.kind)
        for name, value in self.config.items():
            if name == "is_causal":  # null means false; BERT does not read it
                if value is not True and self.kind != "bert":
                    raise ValueError(f"option 'is_causal' is not covered: {'null' if value is None else repr(value)}")
                continue
            if name in READ and name not in self._table and value is not None:
                quantized = name in {"quantization_config", "compression_config"}
                remedy = "a quantized checkpoint cannot be rewritten: rewrite first, quantize afterwards"
                raise ValueError(f"option {name!r} is not covered" + (f": {remedy}" if quantized else f": {value!r}"))
            if name in strange and name not in ignore:
                near = difflib.get_close_matches(name, self._table, 1, 0.8)
                guess = f" (did you mean {near[0]!r}?)" if near else ""
                raise ValueError(
                    f"option {name!r} = {value!r} of model_type {self.config.get('model_type')!r} is unknown{guess}. "
                    f"If no code reads it, ignore it (--ignore {name}); else describe the model by hand (lg.Stack)"
                )


def unknown(config: Mapping[str, Any], kind: str) -> list[str]:
    """Options with a value that neither the family's table nor the list of those without effect has."""
    known = (*DEFAULTS.get(kind, ()), *READ)
    given = (name for name, value in config.items() if value not in (None, False, [], {}))
    return [name for name in given if name not in known and not matches(name, IGNORED)]


def _default(entry: Any) -> Any:
    if isinstance(entry, Derived):
        return None
    return entry.default if isinstance(entry, Maybe | Pair) else entry


def _checked(name: str, value: Any, entry: Any) -> Any:
    """The value of an option, of the type of its entry in the table.

    Raises:
        ValueError: if it has another type, or is a number without meaning.
    """
    kind = entry.kind if isinstance(entry, Maybe | Derived | Pair) else type(entry)
    if isinstance(entry, Pair) and isinstance(value, list):
        if len(value) != 2:
            raise ValueError(f"option {name!r} must be an integer or a list of two; got {value!r}")
        return [_checked(name, each, entry.default) for each in value]
    if value is None and isinstance(entry, Maybe):
        return None
    if kind is float:
        right = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    else:
        right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if not right:
        shown = "null" if value is None else repr(value)
        raise ValueError(f"option {name!r} must be {_KINDS[kind]}{' or null' * isinstance(entry, Maybe)}; got {shown}")
    if kind not in {int, float} or not isinstance(value, int | float):
        return value
    if kind is float and isinstance(value, int) and not matches(name, UNDECLARED):
        raise ValueError(
            f"option {name!r} must be written as {value}.0, not {value!r}: the transformers package loads no integer"
        )
    least = -math.inf if matches(name, SIGNED) else 0
    if value < least or (value == least and not matches(name, FROM_ZERO)):
        raise ValueError(
            f"option {name!r} must {'not be negative' if matches(name, FROM_ZERO) else 'be positive'}; got {value!r}"
        )
    if value > 1 and matches(name, UP_TO_ONE):
        raise ValueError(f"option {name!r} must be at most 1; got {value!r}")
    return value


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


LARGEST_ANGLE = 1e3
"""Radians a position. Published models turn by 1 at most."""


def rotary(
    options: Options, width: int, *, partial: bool = False, absent: Mapping[str, Any] | None = None, **form: Any
) -> Rotary:
    """Rotary positions of a config.

    `rope_scaling`, where it is not empty, replaces `rope_parameters`. The base and the part of the coordinates that
    turn are read there, else beside it.

    Args:
        options: the config.
        width: width of a head.
        partial: whether the family may turn a part of the coordinates.
        absent: what stands for `rope_parameters` where it is null or absent.
        **form: further fields of `Rotary`.

    Returns:
        The description.

    Raises:
        ValueError: naming a scheme that is not covered, or a value that is missing.
    """
    found = _scheme(options, absent)
    base = options.first("rope_theta", "rotary_emb_base")
    return _turning(
        options, found, width, base, options.first("rotary_pct", "partial_rotary_factor"), partial=partial, **form
    )


def _scheme(options: Options, absent: Mapping[str, Any] | None) -> dict[str, Any]:
    """The object that describes rotary positions, where there is one for all layers."""
    given = options.get("rope_parameters")
    return dict(options.get("rope_scaling") or (absent if given is None else given) or {})


def rotary_by_layer(options: Options, width: int, kind: str, *, base: float, scaled: bool) -> Rotary:
    """Rotary positions of one kind of layers, where `rope_parameters` has an object for each kind.

    Args:
        options: the config.
        width: width of a head.
        kind: "full_attention" or "sliding_attention".
        base: the base where the object has none.
        scaled: whether `rope_scaling` is for these layers.

    Returns:
        The description.

    Raises:
        ValueError: as `rotary`.
    """
    apart = options.get("rope_parameters") or {}
    for name, value in apart.items():
        if name not in ("full_attention", "sliding_attention") or not isinstance(value, dict | None):
            raise ValueError(
                f"option 'rope_parameters' must have an object for full_attention and one for sliding_attention; it "
                f"has {name!r} = {value!r}"
            )
    scaling = options.get("rope_scaling") if scaled else None
    kept = {"rope_type": "default"} if scaling and not apart else {}
    return _turning(
        options, {**kept, **(apart.get(kind) or {}), **(scaling or {})}, width, base, 1.0, partial=False, apart=True
    )


def _turning(
    options: Options,
    found: dict[str, Any],
    width: int,
    base: float,
    share: float,
    *,
    partial: bool,
    apart: bool = False,
    **form: Any,
) -> Rotary:
    """Rotary positions from the object that describes them, which is used up.

    Args:
        options: the config.
        found: the object.
        width: width of a head.
        base: where the object has none.
        share: part of the coordinates that turn, where the object does not say.
        partial: whether it may be less than 1.
        apart: whether the config has an object for each kind of layers.
        **form: further fields of `Rotary`.
    """
    base, share = _number(found, "rope_theta", base), _number(found, "partial_rotary_factor", share)
    kind = found.pop("type", "default")
    kind = found.pop("rope_type", kind)
    if not partial and share != 1:
        raise ValueError(f"option 'partial_rotary_factor' = {share!r} is not covered (covered: 1)")
    coordinates = int(width * share)
    if not 0 <= coordinates <= width or coordinates % 2:
        raise ValueError(
            f"rotary positions must turn an even number of the {width} coordinates of a head; got {coordinates}"
        )
    angles = [base ** (-2 * i / coordinates) for i in range(coordinates // 2)]
    if kind == "linear":
        factor = _number(found, "factor")
        angles = [a / factor for a in angles]
    elif kind == "llama3":
        factor, low, high = (_number(found, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        length = _original_length(options, found)
        if high <= low:
            raise ValueError(f"rotary option 'high_freq_factor' must be above 'low_freq_factor'; got {high} and {low}")
        angles = [_llama3(a, factor, low, high, length) for a in angles]
    elif kind == "yarn":
        length = _original_length(options, found)
        angles, form["factor"] = _yarn(found, angles, base, length, apart)
    elif kind != "default":
        raise ValueError(f"rotary positions of type {kind!r} are not covered (covered: default, linear, llama3, yarn)")
    if max(angles, default=0) > LARGEST_ANGLE:
        raise ValueError(
            f"rotary positions turn by up to {max(angles):.1e} a position, which rounding spoils: 'rope_theta' or "
            "'factor' is too small"
        )
    if found:
        name, value = next(iter(found.items()))
        raise ValueError(f"rotary option {name!r} = {value!r} is not covered for type {kind!r}")
    return Rotary(tuple(angles), **form)


def _original_length(options: Options, found: dict[str, Any]) -> float:
    """The context that a model was trained for, before its rotary positions were changed.

    Raises:
        ValueError: if an option beside the scheme, which comes first, is null.
    """
    name = "original_max_position_embeddings"
    if options.given(name) and options.config[name] is None:
        raise ValueError(f"option {name!r} must not be null where the rotary positions depend on it")
    length = _number(found, name, options.get("max_position_embeddings"))
    return options.first(name) or length


def _number(found: dict[str, Any], name: str, default: float | None = None) -> float:
    """A positive number of a rotary scheme, taken out of it.

    Raises:
        ValueError: if it is missing, or no positive number.
    """
    value = found.pop(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"rotary option {name!r} must be a positive number; got {value!r}")
    return value


def _llama3(angle: float, factor: float, low: float, high: float, length: float) -> float:
    """Slow angles divided by `factor`, fast ones kept, and a linear passage between (Llama 3.1)."""
    turns = length * angle / (2 * math.pi)  # turns within the original context
    keep = min(1.0, max(0.0, (turns - low) / (high - low)))
    return angle * (keep + (1 - keep) / factor)


def _yarn(
    found: dict[str, Any], angles: list[float], base: float, length: float, apart: bool
) -> tuple[list[float], float]:
    """Angles and the factor of cosine and sine by YaRN (arXiv 2309.00071).

    Args:
        found: the options of the scheme, which are used up.
        angles: angles without it.
        base: the base of the angles.
        length: the original context.
        apart: whether the config has an object for each kind of layers: then `truncate` is not read there.

    Raises:
        ValueError: naming an option that is not covered.
    """
    factor = _number(found, "factor")
    fast, slow = (_number(found, name, default) for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    truncate = found.pop("truncate", True)
    if not isinstance(truncate, bool) or (apart and not truncate):
        raise ValueError(f"rotary option 'truncate' = {truncate!r} is not covered")

    def pair(turns: float) -> float:
        """The pair, as a number with a fraction, that makes so many turns in the original context."""
        return len(angles) * math.log(length / (2 * math.pi * turns)) / math.log(base)

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(angles) - 1)
    high = high + 0.001 if low == high else high
    slowed = [min(1.0, max(0.0, (i - low) / (high - low))) for i in range(len(angles))]
    angles = [a / factor * s + a * (1 - s) for a, s in zip(angles, slowed, strict=True)]

    own, one, other = (found.pop(name, None) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    one, other = (None if value == 0 else value for value in (one, other))  # as good as absent
    for name, value in (("attention_factor", own), ("mscale", one), ("mscale_all_dim", other)):
        if value is not None:
            _number({name: value}, name)
    if own is None:
        own = _yarn_scale(factor, 1.0)
        if one is not None and other is not None:
            own = _yarn_scale(factor, one) / _yarn_scale(factor, other)
    return angles, float(own)


def _yarn_scale(factor: float, weight: float) -> float:
    """What YaRN multiplies queries and keys by, where the context is `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1


def yarn_score_scale(options: Options) -> float:
    """The factor of all scores that `mscale_all_dim` asks for (DeepSeek), beside that of cosine and sine."""
    found = _scheme(options, None)
    weight, kind = found.get("mscale_all_dim"), found.get("rope_type", found.get("type", "default"))
    return _yarn_scale(found["factor"], weight) ** 2 if weight and kind == "yarn" else 1.0
