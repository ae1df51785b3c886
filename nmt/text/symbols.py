"""Ids that mean the same in every vocabulary, of words and of trees."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # <pad>, <unk>, <s>, </s>
