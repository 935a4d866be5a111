"""Architectures of transformers from small random configurations, each with a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ = {
    "vocab_size": 99,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    **TOKENS,
}
IMAGE = {"image_size": 30, "patch_size": 6, "num_channels": 3}

# name -> (model class, configuration class, configuration, kind of input)
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **TOKENS},
        "causal",
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", SMALL | TOKENS, "causal"),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        SMALL | TOKENS | {"num_key_value_heads": 2},
        "causal",
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        SMALL
        | TOKENS
        | {"num_key_value_heads": 2, "num_local_experts": 4, "intermediate_size": 32},
        "causal",
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        SMALL | TOKENS | {"num_key_value_heads": 2},
        "causal",
    ),
    "gemma": (
        "GemmaForCausalLM",
        "GemmaConfig",
        SMALL | TOKENS | {"num_key_value_heads": 2, "head_dim": 8},
        "causal",
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        SMALL | TOKENS | {"num_key_value_heads": 2, "head_dim": 8},
        "causal",
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", SMALL | TOKENS, "causal"),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": 99,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 24,
            "word_embed_proj_dim": 16,
        }
        | TOKENS,
        "causal",
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL | TOKENS, "causal"),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4, **TOKENS},
        "causal",
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, **TOKENS},
        "causal",
    ),
    "bert": ("BertForMaskedLM", "BertConfig", SMALL, "masked"),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SMALL | TOKENS, "masked"),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", SMALL | {"embedding_size": 16}, "masked"),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", SMALL | {"embedding_size": 16}, "masked"),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
        "masked",
    ),
    "deberta_v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", SMALL, "masked"),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 99,
            "d_model": 32,
            "d_ff": 37,
            "d_kv": 8,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "seq2seq",
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ, "seq2seq"),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SEQ2SEQ, "seq2seq"),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {k: v for k, v in SMALL.items() if k != "vocab_size"} | IMAGE,
        "image",
    ),
    "deit": (
        "DeiTForImageClassification",
        "DeiTConfig",
        {k: v for k, v in SMALL.items() if k != "vocab_size"} | IMAGE,
        "image",
    ),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 2],
            "num_heads": [2, 2],
            "window_size": 2,
        },
        "image32",
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_stages": 4},
        "image32",
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "layer_type": "basic",
        },
        "image32",
    ),
}


def build(name: str) -> tuple[torch.nn.Module, Callable[[int], torch.Tensor]]:
    """(model, step): ``step(i)`` runs training step i and gives its loss."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model_name, config_name, settings, kind = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**settings))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)

    def inputs() -> dict[str, torch.Tensor]:
        if kind.startswith("image"):
            size = 32 if kind == "image32" else 30
            return {
                "pixel_values": torch.randn(2, 3, size, size, generator=generator),
                "labels": torch.tensor([0, 1]),
            }
        ids = torch.randint(3, 99, (2, 12), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 9:] = 0  # padding: additive masks of the most negative number
        given = {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}
        if name == "mamba":
            del given["attention_mask"]
        return given

    def step(i: int) -> torch.Tensor:
        torch.manual_seed(100 + i)  # dropout
        optimizer.zero_grad()
        loss: torch.Tensor = model(**inputs()).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step
