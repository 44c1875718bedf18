"""Record llama.cpp's token ids of difficult texts, which the tokenizer tests compare with.

    python scripts/record_tokenizer_ids.py --demo-model SmolLM2.gguf --gemma gemma-3-270m.gguf --llama-python PYTHON

PYTHON is an interpreter that has llama-cpp-python. The byte-level vocabulary of the demo model is recorded once under
each pre-tokenizer name; tests/frontend/tokenizer/data/small_spm.json is a SentencePiece vocabulary made for its traps.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gguf

DATA = Path(__file__).parent.parent / "tests" / "frontend" / "tokenizer" / "data"
PRE_TOKENIZERS = ("smollm", "gpt-2", "default", "llama-bpe", "qwen2", "dbrx", "gpt-4o", "deepseek-coder", "deepseek-v3")

HARD_TEXTS = [
    "",
    " ",
    "  ",
    "Hello, world!",
    "Hello  world   and    more",
    " leading",
    "trailing ",
    "trailing  \n",
    "\n",
    "\n\n",
    "\n" * 40,
    "\t",
    "\t\tx\t y",
    " " * 100,
    "x" + " " * 33 + "y",
    "\r\n",
    "a\r\nb\r\n\r\nc",
    " \n \n  \n",
    "\n hello",
    "\n  123",
    "1",
    " 1",
    "\n1",
    "1234567890",
    "12345678901234567890123456789012345678901",
    "a1b22c333d4444",
    "3.14159 and 1,000,000 or 1e-10",
    "٣٤٥ ١٢٣ ४५६ Ⅷ ½ ²³",
    "a" * 40,
    "ab" * 30,
    "It's I'm they're we've he'd she'll don't",
    "IT'S I'M THEY'RE WE'VE HE'D SHE'LL DON'T",
    "'S 'll 'LL 'Re 'vE 'ſ 's' ''s",
    "d'accord l'été aujourd'hui",
    "🙂",
    "😀😃😄 😁",
    "👨‍👩‍👧‍👦 family",
    "🏳️‍🌈🇩🇪🇯🇵 flags",
    "👍🏽 skin",
    "日本語のテキスト",
    "中文,标点。测试",
    "한국어 문장입니다",
    "مرحبا بالعالم، كيف حالك؟",
    "สวัสดีชาวโลก",
    "नमस्ते दुनिया",
    "Здравствуй, мир",
    "Ελληνικά και עברית",
    "e\u0301a\u0308o\u0302 combining",
    "Zal\u0334\u0335\u0336go",
    "café naïve Œuvre ﬁ ﬂ",
    "mixed日本English混合текст123",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A:\n\tpass\n",
    'for (int i = 0; i < n; ++i) { printf("%d\\n", a[i]); }',
    '<div class="a">text</div>',
    '{"key": [1, 2, {"x": null}]}',
    "https://example.com/a/b?c=d&e=f#g",
    "user@example.com",
    "$100 + €50 = £?",
    "!!!??? ... --- ___ ***",
    "#hashtag @mention",
    "\x00",
    "a\x00b",
    "\x01\x02\x1f\x7f",
    "\ufffd",
    "a\ufffdb\ufffd\ufffd",
    "\ue000\uf8ff private",
    "\U000f0000 plane 15",
    "\u200b\u200c\u200d\ufeff zero width",
    "\u00a0no\u00a0break\u2003em\u3000ideographic\u2028line\u0085next",
    "\u2581 mark \u2581\u2581x",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|>",
    "a<|endoftext|>b <|im_end|> c",
    "<|im_end|><|im_end|>",
    "<|im_end",
    "<|im_ends|>",
    "<repo_name>x<reponame>",
    "<bos><eos><pad><unk>",
    "<start_of_turn>user\nhi<end_of_turn>\n",
    "<unused1>x<unused12>",
    "<table><tr><td>1</td></tr></table>",
    "[multimodal]",
    "<0x41><0x0A>",
    "<s>a</s><unk><tag>b",
    "éa é a éaéa",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore.",
]

PHI3_TOKENS = ["<|endoftext|>", "<|end|>", "<|user|>"]
PHI3_TEXTS = [
    "<s> a",
    "<s>\n\n a </s>  b",
    "<tag>  a<tag> \n<s>",
    "</s>\t\tx",
    "<unk> a",
    "a <s> a",
    "<|user|>\n a<|end|>\n<|user|> <|endoftext|>  a",
    "a <|end|>  ",
    "<|end|>\u3000a",
    " <|end|>a",
    "<|user|>\x0b\x0c\r a",
]

_TOKENIZE = """
import json, sys
import llama_cpp
path, texts = json.load(sys.stdin)
model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
def ids(text, special):
    return model.tokenize(text.encode(), add_bos=False, special=special)
json.dump([{"text": t, "plain": ids(t, False), "special": ids(t, True)} for t in texts], sys.stdout)
"""


def main() -> None:
    """Write every fixture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo-model", type=Path, required=True)
    parser.add_argument("--gemma", type=Path, required=True)
    parser.add_argument("--llama-python", type=Path, required=True)
    arguments = parser.parse_args()
    python = arguments.llama_python
    with tempfile.TemporaryDirectory() as folder:
        demo = read_metadata(arguments.demo_model)
        for name in PRE_TOKENIZERS:
            file = write_vocabulary(Path(folder) / "v.gguf", {**demo, "tokenizer.ggml.pre": name})
            record(f"demo_{name}", tokenize(python, file, HARD_TEXTS))
        small = json.loads((DATA / "small_spm.json").read_text(encoding="utf-8"))
        file = write_vocabulary(Path(folder) / "s.gguf", small)
        record("small_spm_ids", tokenize(python, file, [*HARD_TEXTS, *small_alphabet_texts()]))
        file = write_vocabulary(Path(folder) / "p.gguf", phi3_vocabulary(small))
        record("phi3_spm_ids", tokenize(python, file, [*HARD_TEXTS, *PHI3_TEXTS]))
    record("gemma", tokenize(python, arguments.gemma, HARD_TEXTS))


def phi3_vocabulary(small: dict[str, Any]) -> dict[str, Any]:
    """The small vocabulary with tokens of Phi-3, by whose name llama.cpp knows how they treat blanks."""
    longer = {
        "tokenizer.ggml.tokens": PHI3_TOKENS,
        "tokenizer.ggml.scores": [-1000.0] * len(PHI3_TOKENS),
        "tokenizer.ggml.token_type": [3] * len(PHI3_TOKENS),
    }
    return {**small, **{key: small[key] + more for key, more in longer.items()}, "general.name": "Phi-3 Mini"}


def small_alphabet_texts() -> list[str]:
    """Texts full of ties and overlaps for the small vocabulary."""
    source = random.Random(7)
    return ["".join(source.choices("aaabbbc  ", k=source.randint(1, 24))) for _ in range(300)]


def read_metadata(path: Path) -> dict[str, Any]:
    """The vocabulary's keys."""
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.ggml.")}


def write_vocabulary(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of a vocabulary alone."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def tokenize(python: Path, file: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Ask llama.cpp."""
    done = subprocess.run(
        [str(python), "-c", _TOKENIZE], input=json.dumps([str(file), texts]), capture_output=True, text=True, check=True
    )
    cases: list[dict[str, Any]] = json.loads(done.stdout)
    return cases


def record(name: str, cases: list[dict[str, Any]]) -> None:
    """One case a line, so that a difference is readable."""
    lines = ",\n".join(json.dumps(case) for case in cases)
    (DATA / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
