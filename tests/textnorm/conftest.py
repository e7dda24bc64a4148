from tests.frontend.text.conftest import front_end, latin, plain, third, tokenizer, tokenizer_folder

__all__ = ["front_end", "latin", "plain", "third", "tokenizer", "tokenizer_folder"]
