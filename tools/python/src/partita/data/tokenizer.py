"""A Hugging Face tokenizer from files on this machine."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import PartitaError

__all__ = ["TextTokenizer"]


class TextTokenizer:
    """`path`: a folder with tokenizer.json, as `save_pretrained` writes it, or that file itself."""

    def __init__(self, path: str | Path):
        given = Path(path)
        self.path = given / "tokenizer.json" if given.is_dir() else given
        if not self.path.is_file():
            raise PartitaError(
                f"{self.path}: there is no such file; expected a tokenizer of Hugging Face's: tokenizer.json, or its folder. From another form (sentencepiece's .model, vocab.json): "
                "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(ANOTHER)"
            )

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise PartitaError("tokenizing needs `pip install tokenizers`") from None
        try:
            tokenizer = Tokenizer.from_file(str(self.path))
        except Exception as error:  # the library raises Exception itself
            raise PartitaError(f"{self.path}: it is no tokenizer of Hugging Face's: {error}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def vocabulary(self) -> int:
        """Ids are below it."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def token(self, token: int) -> str | None:
        return self._tokenizer.id_to_token(token)

    def end_of_document(self, said: str | None) -> int | None:
        """The id that ends a document: `said` (a token, an id, or "none"), else the tokenizer's own eos_token."""
        if said == "none":
            return None
        if said is None:
            config = self.path.with_name("tokenizer_config.json")
            said = json.loads(config.read_text()).get("eos_token") if config.is_file() else None
            said = said.get("content") if isinstance(said, dict) else said
            if said is None:
                raise PartitaError(f"{self.path}: nothing says which token ends a document (no eos_token in {config.name}); say --end-of-document TOKEN, or none")
        found = self._tokenizer.token_to_id(said)
        if found is None and said.isdecimal() and int(said) < self.vocabulary:
            found = int(said)
        if found is None:
            raise PartitaError(f"--end-of-document {said}: the tokenizer has neither such a token nor such an id (it has {self.vocabulary})")
        return found
