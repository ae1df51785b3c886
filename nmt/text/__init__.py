"""Lines of text files, tokenizers and subword vocabularies, without torch."""
