"""From text to token ids and back: tokenizer, chat template, detokeniser, output processing. No torch."""
