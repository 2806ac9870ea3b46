"""What is built is whole: the wheel holds the SQL, the types' mark and the command."""

import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.tidy.sources import PACKAGE, ROOT, name_of

# What a build reads; it writes beside it, so it gets a copy.
INPUTS = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "schema.sql")
FOLDERS = (PACKAGE.name, "systemd", "ops")


def test_the_wheel_is_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in INPUTS:
        shutil.copy(ROOT / name, source)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--disable-pip-version-check",
            f"--wheel-dir={tmp_path}",
            str(source),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        (entries,) = [name for name in inside if name.endswith("entry_points.txt")]
        assert "reliable-worker = reliable_worker.cli.main:main" in archive.read(entries).decode()
    wanted = {
        name_of(path)
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".sql") or path.name == "py.typed"
    }
    assert wanted - inside == set()
    shared = {name.partition("/data/share/reliable-worker/")[2] for name in inside}
    assert {path.name for path in (ROOT / "systemd").iterdir()} == {
        name.partition("/")[2] for name in shared if name.startswith("systemd/")
    }
    assert {"schema.sql", "prometheus/rules.yaml", "grafana/dashboard.json"} <= shared
    assert not [name for name in inside if name.startswith("tests")]


def test_the_changelog_knows_the_version() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest
    assert newest[1] == config["metadata"]["version"]
