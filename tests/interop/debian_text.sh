#!/usr/bin/env bash
# Collects English prose from the documentation of the Debian packages on this machine: real text for training runs.
#
#     tests/interop/debian_text.sh OUT
#
# Writes OUT/train.jsonl and OUT/evaluation.jsonl (every twentieth document), an object a line:
# {"source": FILE, "text": TEXT}. Takes the info manuals, licences, READMEs, FAQs, NEWS and other text of the packages,
# and Perl's documentation: UTF-8 text of 2 to 400 KB without control characters, mostly lower-case letters, each text
# once, in the order of the files' names. Change logs and copyright files are mostly lists, and left out. The same
# packages give the same bytes.
set -euo pipefail
[ $# = 1 ] || { sed -n '4,12s/^# \{0,1\}//p' "$0"; exit 2; }
out=$1
mkdir -p "$out"
command -v python3 > /dev/null || { echo "debian_text.sh: needs python3" >&2; exit 1; }

export LC_ALL=C
{
    find /usr/share/info -name '*.info*.gz'
    find /usr/share/common-licenses -type f
    find /usr/share/doc -type f \( -name '*.txt' -o -name '*.txt.gz' -o -name '*.md' -o -name '*.md.gz' -o -name '*.rst' \
        -o -name '*.rst.gz' -o -name 'README*' -o -name 'NEWS*' -o -name 'FAQ*' -o -name 'HISTORY*' -o -name 'TODO*' \)
    find /usr/share/perl/ /usr/share/perl5/ -name '*.pod'
} 2> /dev/null | sort -u | python3 -c '
import gzip, hashlib, json, os, re, sys, unicodedata

out, seen, written = sys.argv[1], set(), {"train": [0, 0], "evaluation": [0, 0]}
parts = {name: open(os.path.join(out, name + ".jsonl.part"), "w", encoding="utf-8") for name in written}


def documents(path):
    """The texts of a file: an info manual is one text a node, others are one."""
    data = open(path, "rb").read()
    text = (gzip.decompress(data) if path.endswith(".gz") else data).decode("utf-8")
    if path.startswith("/usr/share/info"):
        # Nodes are short: as many as make up some pages are one document.
        nodes = [n.split("\n", 2)[-1] for n in text.split("\x1f")[1:] if "\x7f" not in n]
        size = 0
        page = []
        for node in nodes:
            page.append(re.sub(r"(?s)\x00\x08\[.*?\x00\x08\]", "", node))
            size += len(page[-1])
            if size > 8000:
                yield "\n".join(page)
                size, page = 0, []
        yield "\n".join(page)
    else:
        yield text


for path in sys.stdin.read().splitlines():
    try:
        found = list(documents(path))
    except (OSError, EOFError, UnicodeDecodeError):
        continue
    for text in found:
        text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text.replace("\r\n", "\n").replace("\f", ""))).strip() + "\n"
        letters = sum(map(text.count, "abcdefghijklmnopqrstuvwxyz"))
        if not 2000 <= len(text) <= 400000 or letters < 0.6 * len(text):
            continue
        # English has "the" every twenty words or so.
        if len(re.findall(r"\bthe\b", text)) * 300 < len(text):
            continue
        if any(unicodedata.category(c) in ("Cc", "Cn", "Co") and c not in "\n\t" for c in set(text)):
            continue
        key = hashlib.sha256(text.encode()).digest()
        if key in seen:
            continue
        seen.add(key)
        part = "evaluation" if len(seen) % 20 == 0 else "train"
        parts[part].write(json.dumps({"source": path, "text": text}, ensure_ascii=False) + "\n")
        written[part][0] += 1
        written[part][1] += len(text.encode())
for name, file in parts.items():
    file.flush()
    os.fsync(file.fileno())
    file.close()
    os.rename(file.name, os.path.join(out, name + ".jsonl"))
    print(f"{name}.jsonl: {written[name][0]} documents, {written[name][1] / 1e6:.1f} MB of text")
' "$out"
