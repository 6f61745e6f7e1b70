"""A model that need not answer anything sensible."""

import json
from pathlib import Path

VOCABULARY = 1000


def write_model(directory: Path) -> None:
    """Writes all files of a small model but its weights."""
    directory.mkdir()
    special = ["<unk>", "<s>", "</s>"]
    words = special + [f"w{i}" for i in range(len(special), VOCABULARY)]
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "vocab_size": VOCABULARY,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
        },
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": i,
                    "content": word,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for i, word in enumerate(special)
            ],
            "pre_tokenizer": {"type": "Whitespace"},
            "model": {
                "type": "WordLevel",
                "vocab": {word: i for i, word in enumerate(words)},
                "unk_token": "<unk>",
            },
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
