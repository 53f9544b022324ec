# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
"""Writes configs.json: random config.json files, and what transformers and vLLM
make of them. Run it with the Python of a vLLM installation:

    python configs.py configs.json

Only what a real engine accepts is written. The texts that vLLM hashes are taken
from its own functions by standing in for its hash.
"""

import json
import random
import sys
import tempfile
import types

import vllm.config  # first, for its import order
from vllm.model_executor.model_loader.weight_cache import protocol
from vllm.transformers_utils.config import get_config, get_hf_text_config
from vllm.transformers_utils.model_arch_config_convertor import (
    ModelArchConfigConvertorBase,
)

DENSE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
OTHERS = (
    "mixtral qwen2_moe qwen3_moe gemma gemma2 deepseek_v2 deepseek_v3 olmo olmo2 olmoe "
    "granite granitemoe cohere starcoder2 smollm3 gpt2 opt glm4 gpt_oss gemma3_text "
    "stablelm nemotron exaone4 phimoe"
).split()
QUANTIZATION = [
    {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head", "é😀\u007f"]},
    {"quant_method": "FP8", "x": 1.0, "y": 1e-5, "z": [True, None, 1e16, -0.0, 123456789012345678901234567890]},
    {"quant_method": "compressed_tensors", "format": 'a"\\\n\t'},
    {"bits": 4},
    {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
    {"quant_method": "gptq", "bits": 4},
]


def maybe(d, key, choices, chance=0.5):
    if random.random() < chance:
        d[key] = random.choice(choices)


def rope(model_type, modern):
    names = ["default", "longrope", "su", "yarn"]
    if model_type != "phi3":
        names += ["linear", "dynamic", "llama3", "mrope"]
    name = random.choice(names)
    d = {"rope_type" if modern or random.random() < 0.5 else "type": name}
    if random.random() < 0.15:
        d["type"] = d["rope_type"] = name
    if name in ("linear", "dynamic", "yarn", "llama3"):
        d["factor"] = random.choice([2, 4.0, 8.0, 2.5])
    if name == "llama3":
        d.update(low_freq_factor=1.0, high_freq_factor=4.0)
    if name in ("llama3", "yarn", "longrope", "su"):
        maybe(d, "original_max_position_embeddings", [64, 4096])
    if name == "yarn":
        maybe(d, "beta_fast", [32, 32.0], 0.3)
        maybe(d, "mscale", [1.0, 0.707], 0.3)
        maybe(d, "attention_factor", [1.0, 1.1], 0.2)
    if name in ("longrope", "su") or model_type == "phi3" and name == "yarn":
        d["short_factor"], d["long_factor"] = [1.0] * 8, [1.5] * 8
    if name == "mrope":
        d["mrope_section"] = [2, 3, 3]
    if modern or random.random() < 0.1:
        maybe(d, "rope_theta", [10000.0, 1000000, 500000.0, 1e-5, 1.5e17], 0.8)
    maybe(d, "partial_rotary_factor", [0.5, 1.0], 0.1)
    return d


def config(model_type):
    d = {"model_type": model_type}
    if model_type in DENSE:
        maybe(d, "architectures", [[DENSE[model_type]]], 0.85)
        maybe(d, "hidden_size", [64, 128], 0.9)
        maybe(d, "num_attention_heads", [4, 8], 0.9)
        maybe(d, "num_key_value_heads", [2, 4] if model_type == "mistral" else [2, 4, None], 0.6)
        maybe(d, "head_dim", [16, 64 if model_type == "qwen3" else 32], 0.3)
        maybe(d, "num_hidden_layers", [2, 30], 0.6)
        maybe(d, "vocab_size", [259], 0.6)
        maybe(d, "intermediate_size", [96], 0.6)
        maybe(d, "tie_word_embeddings", [True, False])
        maybe(d, "attention_bias", [True, False], 0.3)
        if model_type in ("llama", "mistral"):
            maybe(d, "mlp_bias", [True], 0.2)
            maybe(d, "bias", [True, False], 0.15)
            maybe(d, "qkv_bias", [True, False], 0.15)
        if model_type in ("qwen2", "qwen3"):
            maybe(d, "use_sliding_window", [True], 0.3)
            maybe(d, "max_window_layers", [0, 1, 28], 0.3)
            maybe(d, "sliding_window", [None, 32], 0.3)
    else:
        d["architectures"] = ["Some%sForCausalLM" % model_type.title()]
    maybe(d, "max_position_embeddings", [128, 512, 8192], 0.8)
    maybe(d, "original_max_position_embeddings", [64, 2048], 0.4 if model_type == "phi3" else 0.05)
    form = random.random()
    if form < 0.35:
        d["rope_parameters"] = rope(model_type, True)
        maybe(d, "rope_theta", [777.0], 0.2)
    elif form < 0.7:
        d["rope_scaling"] = rope(model_type, False)
        maybe(d, "rope_theta", [10000.0, 1e6, 5000000], 0.7)
    else:
        maybe(d, "rope_theta", [10000, 1e6, 123456.5], 0.7)
        maybe(d, "rope_scaling", [None, {}], 0.3)
        maybe(d, "rope_parameters", [None], 0.2)
    if model_type in ("qwen2", "qwen3") and random.random() < 0.15:
        d.pop("rope_scaling", None)
        d["rope_parameters"] = {
            "full_attention": rope(model_type, True),
            "sliding_attention": random.choice([None, rope(model_type, False)]),
        }
    maybe(d, "partial_rotary_factor", [0.5, 0.25], 0.1)
    maybe(d, "rotary_pct", [0.5], 0.05)
    maybe(d, "rotary_emb_base", [99], 0.05)
    maybe(d, random.choice(["dtype", "torch_dtype"]), ["bfloat16", "float16", "float32", "half"])
    maybe(d, "quantization_config", QUANTIZATION, 0.15)
    return d


def outcome(text):
    directory = tempfile.mkdtemp()
    with open(directory + "/config.json", "w", encoding="utf-8") as f:
        f.write(text)
    c = get_config(directory, trust_remote_code=False)
    t = get_hf_text_config(c)
    ModelArchConfigConvertorBase(c, t).get_quantization_config()  # edits it in place
    texts = []
    real = protocol.safe_hash
    protocol.safe_hash = lambda b, **kw: (texts.append(b.decode()), real(b, **kw))[1]
    protocol._hash_quant_config(getattr(c, "quantization_config", None), None)
    protocol.hash_rope_parameters(types.SimpleNamespace(hf_text_config=t))
    protocol.safe_hash = real
    want = {
        "Architectures": c.architectures,
        "DType": str(c.dtype).removeprefix("torch.") if c.dtype else "",
        "MaxPositions": getattr(t, "max_position_embeddings", None),
        "QuantPayload": texts[0],
        "RopePayload": texts[1],
    }
    if c.model_type in DENSE:
        want |= sizes(c)
    return want


def sizes(c):
    """The sizes, and head_dim and biases as the vLLM class of that type reads them."""
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
    return {
        "HiddenSize": c.hidden_size,
        "IntermediateSize": c.intermediate_size,
        "Layers": c.num_hidden_layers,
        "Heads": c.num_attention_heads,
        "KVHeads": c.num_key_value_heads,
        "HeadDim": head_dim,
        "VocabSize": c.vocab_size,
        "TieWordEmbeddings": c.tie_word_embeddings,
        "AttentionBias": qkv,
        "OutputBias": out,
        "MLPBias": mlp,
    }


def main():
    random.seed(7)
    repeat = dict.fromkeys(OTHERS, 6) | dict(llama=70, mistral=40, qwen2=60, qwen3=60, phi3=50)
    recorded = []
    for model_type, n in repeat.items():
        for _ in range(n):
            d = config(model_type)
            text = json.dumps(d, ensure_ascii=random.random() < 0.5)
            try:
                recorded.append({"config": text, "want": outcome(text)})
            except Exception as e:  # such an engine never asks
                print(model_type, repr(e)[:120], file=sys.stderr)
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(recorded, f, indent=0)


main()
