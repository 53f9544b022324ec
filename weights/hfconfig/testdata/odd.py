# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
"""Writes odd.json: what transformers and vLLM make of a config.json in which one
key has a value that it isn't documented to have. Run it with the Python of a vLLM
installation:

    VLLM_LOGGING_LEVEL=ERROR python odd.py odd.json

For each key the outcomes are listed with the values that have them: null where an
engine ends at the value, so that none ever asks for such files, else what differs
from the configuration without the odd value.
"""

import json
import sys
import tempfile
import time
import types

import vllm.config  # first, for its import order
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader.weight_cache import protocol
from vllm.transformers_utils.config import get_config, get_hf_text_config
from vllm.transformers_utils.model_arch_config_convertor import (
    ModelArchConfigConvertorBase,
)

ODD = [
    "null", "true", "false", "0", "1", "-1", "2", "8.0", "0.5", '"8"', '"x"', '""', "[]", "[8]",
    '["x"]', "{}", '{"a": 1}', "NaN", "Infinity", "-Infinity", "1" + "0" * 30,
]
DENSE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
KEYS = """model_type architectures dtype torch_dtype hidden_size intermediate_size
num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size
max_position_embeddings tie_word_embeddings attention_bias bias qkv_bias mlp_bias hidden_act
hidden_activation is_causal qk_norm ada_rms_norm_t_cond dual_chunk_attention_config text_config
text_encoder decoder generator llm_config vision_config audio_config thinker_config
speculators_config target_layer_count quantization_config compression_config per_layer_config
configuration_files attribute_map default_rope_type _rope_type_labels __dict__ __class__
rope_scaling rope_parameters rope_theta partial_rotary_factor rotary_pct rotary_emb_fraction
rotary_emb_base original_max_position_embeddings layer_types use_sliding_window sliding_window
max_window_layers""".split()

THETA = {"rope_theta": 10000.0}
ROPES = {
    "default": THETA,
    "linear": THETA | {"factor": 2.0},
    "dynamic": THETA | {"factor": 2.0, "max_trained_positions": 32},
    "llama3": THETA | {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "yarn": THETA | {"factor": 4.0, "original_max_position_embeddings": 64},
}
ROPE_KEYS = """rope_type type rope_theta partial_rotary_factor factor original_max_position_embeddings
attention_factor beta_fast beta_slow mscale mscale_all_dim truncate low_freq_factor
high_freq_factor max_trained_positions mrope_section mrope_interleaved xdrope_section use_fope
rope_dim alpha short_factor long_factor""".split()


def base(model_type):
    return {
        "model_type": model_type, "architectures": [DENSE[model_type]], "dtype": "bfloat16",
        "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 259,
        "max_position_embeddings": 64, "rope_theta": 10000.0,
    }  # fmt: skip


def outcome(text):
    directory = tempfile.mkdtemp()
    with open(directory + "/config.json", "w", encoding="utf-8") as f:
        f.write(text)
    c = get_config(directory, trust_remote_code=False)
    t = get_hf_text_config(c)
    ModelArchConfigConvertorBase(c, t).get_quantization_config()  # edits it in place
    dtype = ModelArchConfigConvertorBase.get_torch_dtype(c, directory, None, "hf")
    want = {
        "Arch": ",".join(c.architectures or []),
        "DType": str(dtype).removeprefix("torch."),
        "QuantHash": protocol._hash_quant_config(getattr(c, "quantization_config", None), None),
        "RopeHash": protocol.hash_rope_parameters(types.SimpleNamespace(hf_text_config=t)),
    } | sizes(c)
    plain = {"is_causal": True}  # what vLLM takes for a missing key; it is false elsewhere
    for key in ("is_causal", "qk_norm", "ada_rms_norm_t_cond", "dual_chunk_attention_config"):
        if bool(getattr(c, key, plain.get(key))) != plain.get(key, False):
            want["Other"] = True  # another kind of model
    return want | cache(want["HeadDim"], c.max_position_embeddings, c.rope_parameters)


def sizes(c):
    """What vLLM's class of that type makes its layers of."""
    head_dim = c.hidden_size // c.num_attention_heads
    if c.model_type != "qwen2":
        head_dim = getattr(c, "head_dim", None) or head_dim
    qkv = out = getattr(c, "attention_bias", False) or getattr(c, "bias", False)
    qkv = getattr(c, "qkv_bias", qkv)
    mlp = getattr(c, "mlp_bias", False)
    if c.model_type == "qwen2":
        qkv, out, mlp = True, False, False
    if c.model_type == "qwen3":
        qkv, out, mlp = c.attention_bias, False, False
    if c.hidden_act != "silu":
        raise ValueError(c.hidden_act)  # as each of the classes does
    return {
        "HiddenSize": c.hidden_size, "IntermediateSize": c.intermediate_size,
        "Layers": c.num_hidden_layers, "Heads": c.num_attention_heads,
        "KVHeads": c.num_key_value_heads, "HeadDim": head_dim, "VocabSize": c.vocab_size,
        "Tied": bool(c.tie_word_embeddings), "QKVBias": bool(qkv), "OutBias": bool(out), "MLPBias": bool(mlp),
    }  # fmt: skip


def cache(head_dim, positions, parameters):
    rotary_embedding._ROPE_DICT.clear()
    table = rotary_embedding.get_rope(head_dim, positions, rope_parameters=parameters).cos_sin_cache
    return {"Rows": table.shape[0], "LastRow": table[-1].float().numpy().tobytes().hex()}


def record(template, value, plain):
    """What an odd value changes, or None."""
    try:
        got = outcome(template.replace('"@"', value))
        json.dumps(got)
    except Exception:
        return None
    return {k: v for k, v in got.items() if v != plain.get(k)}


def records(config, key, nested=None):
    """The outcomes of one key, with the values that have each."""
    plain = outcome(json.dumps(config))
    if nested:
        template = json.dumps(config | {nested: config[nested] | {key: "@"}})
    else:
        template = json.dumps(config | {key: "@"})
    groups = {}
    for value in ODD:
        if key == "num_hidden_layers" and len(value) > 9:
            continue  # Qwen2Config makes a list of that length
        got = record(template, value, plain)
        groups.setdefault(json.dumps(got), (got, []))[1].append(value)
    return list(groups.values())


def main():
    time.sleep = lambda _: None  # between vLLM's attempts
    lines = []
    with vllm.config.set_current_vllm_config(vllm.config.VllmConfig()):
        for model_type in DENSE:
            d = base(model_type)
            lines.append({"config": d, "want": outcome(json.dumps(d)), "nested": "", "keys": {k: records(d, k) for k in KEYS}})
        for kind, parameters in ROPES.items():
            d = base("llama") | {"rope_parameters": {"rope_type": kind} | parameters}
            del d["rope_theta"]
            nested = "rope_parameters"
            lines.append({"config": d, "want": outcome(json.dumps(d)), "nested": nested, "keys": {k: records(d, k, nested) for k in ROPE_KEYS}})
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in lines) + "\n]\n")


main()
