"""Every example in the documents runs, in order, as a newcomer would type it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.commands import clean_environment
from tests.fixtures.postgres import Server

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE_SECONDS = 120

# What the test itself or .ci/run does: making .venv, running the tests, naming the database.
GIVEN = re.compile(r"(make|pip install|git clone|export DATABASE_URL=)\b")


# Blocks for another place than a newcomer's shell: run by tests/systemd on a machine of its own, or
# by nobody, for want of a container engine.
ELSEWHERE = {"sh as-root", "sh in-a-container"}


def _blocks(document: Path) -> Iterator[tuple[str, str]]:
    yield from BLOCK.findall(document.read_text("utf-8"))


def _has_examples(document: Path) -> bool:
    return any(
        language == "python" or not all(GIVEN.match(line) for line in text.splitlines())
        for language, text in _blocks(document)
    )


@pytest.mark.parametrize(
    "document",
    [document for document in DOCUMENTS if _has_examples(document)],
    ids=lambda document: document.relative_to(ROOT).as_posix(),
)
def test_the_examples_run(
    document: Path, tmp_path: Path, server: Server, request: pytest.FixtureRequest
) -> None:
    """A Python block is a file, named by its first line; a shell block runs beside it. The README
    starts from an empty database, as its reader does."""
    dsn = request.getfixturevalue("empty_dsn" if document == DOCUMENTS[0] else "dsn")
    (tmp_path / "schema.sql").symlink_to(ROOT / "schema.sql")
    environment = clean_environment(
        DATABASE_URL=dsn,
        METRICS_ADDRESS="127.0.0.1:0",
        PATH=os.pathsep.join(
            [str(Path(sys.executable).parent), str(server.pg_bin), os.environ["PATH"]]
        ),
    )
    for language, text in _blocks(document):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, f"a Python block opens with its file's name: {text[:60]!r}"
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
        elif language == "sh":
            script = "\n".join(line for line in text.splitlines() if not GIVEN.match(line))
            done = subprocess.run(
                ["bash", "-eu", "-o", "pipefail", "-c", script],
                check=False,
                capture_output=True,
                text=True,
                timeout=EXAMPLE_SECONDS,
                cwd=tmp_path,
                env=environment,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        else:
            raise AssertionError(f"an example in {language} that no test runs")


def test_no_block_escapes() -> None:
    for document in DOCUMENTS:
        fences = re.findall(r"^```(.*)$", document.read_text("utf-8"), re.MULTILINE)
        assert set(fences) <= {"", "sh", "python", *ELSEWHERE}, document


def test_the_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for document in DOCUMENTS:
        for language, text in _blocks(document):
            for target in re.findall(r"^make (\S+)", text if language == "sh" else "", re.M):
                assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*DOCUMENTS, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8")):
            if not target.startswith("https:"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"
