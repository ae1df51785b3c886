"""A translator as data and JavaScript: what a page needs to translate by itself.

`content` packs a model for it. The scripts beside this module compute: `products` multiplies, by `products.c` where
that was compiled, `transformer` is the model, `search` and `tokenizer` are what their names say, `sentences` splits
and joins lines, and `worker` puts them together. `nmt/report/translator.py` writes the page.
"""
