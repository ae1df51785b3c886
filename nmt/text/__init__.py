"""Text files, sentences, terminology and subword vocabularies, without torch."""
