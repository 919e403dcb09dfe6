"""Training data: text to token files, and a look into them. `partita data tokenize|inspect|mix` on the command line.

Needs `pip install 'partita[data]'`: Hugging Face's tokenizers, and pyarrow and zstandard for the files that want them.
"""

from .indexed import TokenFile
from .mix import Mixture, mix
from .tokenize import Tokenized, tokenize

__all__ = ["Mixture", "TokenFile", "Tokenized", "mix", "tokenize"]
