"""Files and functions stay short enough to read, and each module says where it stands."""

import ast
import re

from tests.tidy.sources import PACKAGE, ROOT, name_of, none, parsed, sources, texts

FUNCTION_LINES = 70
FILE_LINES = 400
COLUMNS = 100
PLAIN_STATEMENTS = 3

# Written in pieces, so that this file is no exception to itself.
UNFINISHED = re.compile(
    r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b|NotImplemented" + r"Error"
)
BLANKET = re.compile(
    r"type: ig" + r"nore(?!\[)|# no" + r"qa(?!: [A-Z]+[0-9]+ )|pragma: no " + r"cover"
)

# A path that exists on one machine, or a home.
PLACES = re.compile(
    r"/(wor" + r"k|far" + r"m)/[a-z.]|(?<![\w/])/(home|root|Users)/\w|\.py" + r"env"
)


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{source.at(node)} {node.name}: {length} lines"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    none(long, f"functions of more than {FUNCTION_LINES} lines")


def test_files_are_short() -> None:
    long = [
        f"{name}: {lines} lines"
        for name, text in texts()
        if name.endswith((".py", ".sql"))
        if (lines := text.count("\n")) > FILE_LINES
    ]
    none(long, f"files of more than {FILE_LINES} lines")


def test_lines_of_sql_are_short() -> None:
    """Ruff watches Python's."""
    long = [
        f"{name}:{number}"
        for name, text in texts()
        if name.endswith(".sql")
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS
    ]
    none(long, f"lines of more than {COLUMNS} columns")


def test_every_module_says_its_place() -> None:
    mute = [
        source.name
        for source in sources()
        if source.text.strip() and not ast.get_docstring(source.tree)
    ]
    none(mute, "modules without a docstring")


def test_public_things_of_the_package_are_described() -> None:
    mute = [
        f"{source.at(node)} {node.name}"
        for source in parsed(PACKAGE)
        for node in source.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and not ast.get_docstring(node)
        # The name of a function of a few statements says it all.
        if isinstance(node, ast.ClassDef) or len(node.body) > PLAIN_STATEMENTS
    ]
    none(mute, "public functions and classes without a docstring")


def test_nothing_is_unfinished() -> None:
    found = [
        f"{name}:{number} {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if UNFINISHED.search(line) or (name.endswith(".py") and BLANKET.search(line))
    ]
    none(found, "unfinished, or a check switched off without its name")


def test_no_place_of_one_machine() -> None:
    found = [
        f"{name}:{number} {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if PLACES.search(line)
    ]
    none(found, "paths that exist on one machine only")


def test_every_folder_of_python_is_a_package() -> None:
    """A folder without __init__.py escapes mypy, the import contracts or the wheel."""
    bare = {
        name_of(path.parent)
        for place in ("reliable_worker", "tests")
        for path in (ROOT / place).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    none(sorted(bare), "folders without __init__.py")
