"""``python -m tests.reference`` writes the pages anew: after a change of a format, a setting, a table or a command."""

from tests.reference.pages import PAGES

if __name__ == "__main__":
    for path, text in PAGES.items():
        path.write_text(text(), "utf-8")
