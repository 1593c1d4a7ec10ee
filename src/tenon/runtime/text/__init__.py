"""Text before and after language models: tokenizers, sampling, grammars and chat templates."""
