"""What formats say of texts: units of files, paragraphs, tags, terms, sentences and numbers, without torch."""
