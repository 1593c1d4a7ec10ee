"""Language models of the decoder kind (Llama and its relatives) as graphs: one builder for all of them.

An importer states the sizes and variants (``config``) and gives weights by name (``weights``); ``graph`` writes the
layers with a cache that grows, docs/design/language-models.md.
"""
