"""Varied prompts."""

from __future__ import annotations

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Question: What is 17 + 25?\nAnswer:",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "Photosynthesis is the process by which",
    "El perro corre por el",
    "日本の首都は",
    "SELECT name, age FROM users WHERE",
    '{"name": "Ada", "born":',
    "serving serving serving serving serving serving serving",
    "In 1969, Apollo 11 landed on the Moon. " * 12,
    "a",
    "Roses are red,\nViolets are blue,\n",
)

MORE_PROMPTS = (
    "To be, or not to be,",
    "import numpy as np\n\ndef softmax(x):",
    "La capitale de l'Allemagne est",
    "Q: How many legs does a spider have?\nA:",
    "<|im_start|>system\nYou are a pirate.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
    "The three laws of thermodynamics are:\n1.",
    "for i in range(10):\n    print(",
    "Monday, Tuesday, Wednesday,",
    "Привет, как",
    "x^2 + 2x + 1 =",
    "Recipe: Pancakes\n\nIngredients:\n-",
    "<html>\n<head>\n<title>",
    "0 1 0 1 0 1 0 1 0 1 0",
    "She opened the door and saw " * 20,
    " ",
    "🙂 🙃 🙂 🙃",
)
