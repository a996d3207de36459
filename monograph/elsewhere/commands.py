"""Answers for commands of other programs. They are not accepted: the error says which command does it here."""

_FINE_TUNE = "monograph train --model.from FOLDER --dataloader.dataset TEXTS"
_GENERATE = 'monograph generate FOLDER --prompt "..."'
_PACK = "monograph data pack DATASET OUT"

COMMANDS_ELSEWHERE = {
    "finetune": _FINE_TUNE,
    "fine_tune": _FINE_TUNE,
    "sft": f"{_FINE_TUNE}; conversations: docs/guides/train_your_data.md#chat-and-assistant-data",
    "pretrain": "monograph train RECIPE; see: monograph recipes",
    "chat": _GENERATE,
    "inference": _GENERATE,
    "sample": _GENERATE,
    "serve": f"monograph hf export RUN OUT, for a server that reads Hugging Face folders; one text: {_GENERATE}",
    "preprocess": _PACK,
    "tokenize": _PACK,
    "torchrun": "monograph train RECIPE --ranks N; on several nodes: monograph launch RECIPE --on torchrun --nodes N",
}
"""Name of a command, as `fold_name` spells it -> what to write here."""
