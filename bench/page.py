"""Puts a table that was measured into a page, between the comments that name its place.

    page.py PAGE.md NAME TABLE.md
"""
import os
import subprocess
import sys


def git(*what):
    return subprocess.run(["git", *what], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main():
    page, name, table = sys.argv[1:]
    with open(table) as file:
        table = file.read().strip()
    with open(page) as file:
        text = file.read()
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"{page} has no place for {name}")
    # The page itself changes while its parts are measured.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{page}")
    commit = git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    before, after = text.split(begin)[0], text.split(end)[1]
    with open(page + ".part", "w") as file:
        file.write(f"{before}{begin}\nAt commit {commit}. {table}\n{end}{after}")
    os.rename(page + ".part", page)


main()
