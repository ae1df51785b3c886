"""The ids of the control symbols, which are the same in every vocabulary."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # <pad>, <unk>, <s>, </s>
