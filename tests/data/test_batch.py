"""Sentences as padded tensors."""

from nmt.model.batch import in_batches, pad_ids


def test_ids_stand_between_the_given_symbols_and_are_padded_at_their_ends():
    assert pad_ids([[5], [], [6, 7]]).tolist() == [[5, 0], [0, 0], [6, 7]]
    assert pad_ids([[5], [6, 7]], before=2).tolist() == [[2, 5, 0], [2, 6, 7]]
    assert pad_ids([[5], [6, 7]], before=2, after=3).tolist() == [[2, 5, 3, 0], [2, 6, 7, 3]]


def test_batches_begin_with_the_largest_and_hold_as_many_as_fit():
    sizes = [(3, 1), (9, 0), (4, 0), (3, 2), (4, 0)]
    assert list(in_batches(sizes, 8)) == [[1], [2, 4], [3, 0]]
    assert list(in_batches(sizes, 45)) == [[1, 2, 4, 3, 0]]
    assert list(in_batches(sizes, 1)) == [[1], [2], [4], [3], [0]]
    assert list(in_batches([], 8)) == []
