"""A small pretrained model as people find one: weights, tokenizer with bos, chat template, generation config."""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN_SPLIT

TEXT = [f"the answer to question {number} is {number * 7}." for number in range(60)]
SPECIAL = ["<s>", "</s>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|im_end|>{% endfor %}"
SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}
SINKS = {
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
CHUNKS = {
    "head_dim": 8,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "intermediate_size_mlp": 40,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA3 = {
    "head_dim": 12,
    "sliding_window": 7,
    "query_pre_attn_scalar": 20,
    "layer_types": ["sliding_attention", "full_attention"],
}
FAMILIES = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 8, **EXPERTS}),
    "deepseek_v3": ("DeepseekV3", LATENT),
    "gpt_oss": ("GptOss", SINKS),
    "llama4": ("Llama4Text", CHUNKS),
    "gemma2": ("Gemma2", {"head_dim": 12, "sliding_window": 7, "query_pre_attn_scalar": 20}),
    "gemma3": ("Gemma3Text", GEMMA3),
    "mistral": ("Mistral", {"head_dim": 12, "sliding_window": 7}),
}


def make_tokenizer(*, adds_bos: bool = True) -> Tokenizer:
    """A byte-level BPE with three special tokens, which frames a text with bos where asked.

    It splits texts as Qwen's does, which is what transformers does for Qwen2 models whatever tokenizer.json says.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False)
    )
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
        )
    return tokenizer


def write_pretrained(folder: Path, family: str = "llama", *, scale: float = 1.0, **overrides) -> None:
    """Save it as transformers does; `scale` sharpens the logits, so that greedy tokens vary."""
    name, more = FAMILIES[family]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more, **overrides})
    config.bos_token_id, config.eos_token_id = 0, 1
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    model.generation_config = transformers.GenerationConfig(bos_token_id=0, eos_token_id=[1, 2], pad_token_id=1)
    model.save_pretrained(folder)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(), bos_token="<s>", eos_token="</s>", model_max_length=256
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)


def write_texts(folder: Path, count: int = 40) -> None:
    """A folder of small text files."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text(" ".join(TEXT[number % 20 : number % 20 + 12]))


def read_json(path: Path) -> dict:
    return json.loads(path.read_text())
