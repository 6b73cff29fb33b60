"""Gets PyTorch's test files from Debian's source package `pytorch`. No line of theirs is kept in this tree.

apt-get downloads the package from where this machine gets its own packages, with lists and settings in a temporary folder. The two files stay
in a folder of the user's cache.
"""
import contextlib
import os
import pathlib
import platform
import subprocess
import tarfile
import tempfile

NAMES = ("test_multiprocessing.py", "test_multiprocessing_spawn.py")
#: The version of PyTorch, and the Debian that has it.
RELEASES = {"1.13": "bookworm", "2.6": "trixie"}


class Unavailable(Exception):
    """The files cannot be had. The text says why."""


def find(version: str, folder: "pathlib.Path | None") -> pathlib.Path:
    """Returns the folder that has the two files of a version: a part of the folder that was named, or of the cache."""
    if folder is not None:
        for place in (folder / version, folder):
            if all((place / name).exists() for name in NAMES):
                return place.resolve()
        raise Unavailable(f"{folder} does not have {' and '.join(NAMES)} of {version}")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    place = cache / "shoal" / "pytorch-tests" / version
    if not all((place / name).exists() for name in NAMES):
        download(version, place)
    return place


def download(version: str, place: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-pytorch-") as name:
        folder = pathlib.Path(name)
        (folder / "sources.list").write_text(sources(RELEASES[version]))
        options = {"Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "-", "Dir::State::lists": folder / "lists",
                   "Dir::Cache": folder / "cache", "APT::Sandbox::User": "root"}
        (folder / "lists").mkdir()
        (folder / "cache").mkdir()
        apt = ["apt-get", "-qq", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
        for command in ([*apt, "update"], [*apt, "source", "--download-only", "--tar-only", "pytorch"]):
            run(command, folder)
        archives = list(folder.glob(f"pytorch_{version}.*.orig.tar.*"))
        if not archives:
            raise Unavailable(f"the package pytorch of {RELEASES[version]} is not version {version}")
        extract(archives[0], place)


def extract(archive: pathlib.Path, place: pathlib.Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    left = set(NAMES)
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = pathlib.PurePath(member.name).parts
            if len(parts) == 3 and parts[1] == "test" and parts[2] in left:
                left.remove(parts[2])
                data = tar.extractfile(member)
                assert data is not None
                (place / parts[2]).write_bytes(data.read())
            if not left:
                return
    raise Unavailable(f"{archive.name} does not have test/{' nor test/'.join(sorted(left))}")


def run(command: "list[str]", folder: pathlib.Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=600)
    except FileNotFoundError:
        raise Unavailable("this system does not have apt-get") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"apt-get {command[-1]} did not end in 600 s") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise Unavailable(f"apt-get cannot get the package: {lines[0]}") from None


def sources(release: str) -> str:
    """Returns the entries of this machine for its own release, changed to the source packages of another one."""
    system = platform.freedesktop_os_release()
    own = system.get("VERSION_CODENAME")
    if system["ID"] != "debian" or own is None:
        raise Unavailable(f"the test files come from Debian's source packages, and this is {system['ID']}")
    lines = [f"deb-src {options} {uri} {release} {components}"
             for options, uri, suites, components in entries() if own in suites]
    if not lines:
        raise Unavailable(f"apt's list of sources has no entry for {own}")
    return "\n".join(lines) + "\n"


def entries():
    """Yields apt's entries for binary packages: options, address, suites, components."""
    folder = pathlib.Path("/etc/apt")
    for file in [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]:
        with contextlib.suppress(FileNotFoundError):
            for line in file.read_text().splitlines():
                if line.startswith("deb "):
                    options, _, rest = line[4:].strip().rpartition("]")
                    uri, suite, *components = rest.split("#")[0].split()
                    yield options and options + "]", uri, [suite], " ".join(components)
    for file in sorted(folder.glob("sources.list.d/*.sources")):
        for stanza in file.read_text().split("\n\n"):
            lines = [line for line in stanza.splitlines() if ":" in line and not line.startswith("#")]
            fields = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
            if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
                signed = fields.get("signed-by", "")
                for uri in fields["uris"].split():
                    yield f"[signed-by={signed}]" if signed else "", uri, fields["suites"].split(), fields["components"]
