"""Finds subjects of commits that are too long. scripts/check-style runs it.

Counts the commits after FIRST, the last one before this rule, but no merges. A shallow clone may lack FIRST; then the
commits that it has and that are newer count.
"""
import os
import subprocess
import tempfile

MOST = 72
FIRST, FIRST_TIME = "79afff88472ba17a572a1c304b58d89b0f58a07d", 1795022897


def git(root, *arguments, time=0):
    """Returns what git prints; nothing if it fails, as in a folder that is no clone."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook has those of its own clone
    env.update(GIT_COMMITTER_DATE=f"@{time} +0000", GIT_CONFIG_GLOBAL=os.devnull)
    run = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *arguments], cwd=root, env=env, capture_output=True)
    return run.stdout.decode(errors="replace") if run.returncode == 0 else ""


def findings(root, first=FIRST, first_time=FIRST_TIME):
    """The text of each finding."""
    after = [f"{first}..HEAD"] if git(root, "cat-file", "-t", first) == "commit\n" else [f"--since=@{first_time}", "HEAD"]
    for line in git(root, "log", "--no-merges", "--format=%h %s", *after).splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > MOST:
            yield f"{commit} has a subject of {len(subject)} characters; at most {MOST} are allowed: {subject}"


def self_test():
    """Returns what went wrong, as texts: in a clone, a bare and a shallow one, and in a folder without git."""
    short, long, start = "é" * MOST, "b" * (MOST + 1), 1700000000
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "whole")

        def commit(subject, time):
            git(root, "commit", "--allow-empty", "-qm", f"{subject}\n\n{long}", time=start + time)

        os.mkdir(root)
        os.mkdir(os.path.join(folder, "none"))
        git(root, "init", "-q", "-b", "main")
        commit("old " + long, 0)
        first = git(root, "rev-parse", "HEAD").strip()
        git(root, "checkout", "-q", "-b", "side")
        commit("new " + long, 2)
        git(root, "checkout", "-q", "main")
        commit(short, 3)
        git(root, "merge", "-q", "--no-ff", "-m", "merge " + long, "side", time=start + 4)
        git(folder, "clone", "-q", "--bare", f"file://{root}", "bare")
        git(folder, "clone", "-q", "--depth", "2", f"file://{root}", "shallow")
        wrong = []
        for kind, wanted in (("whole", ["new"]), ("bare", ["new"]), ("shallow", ["new"]), ("none", [])):
            found = [text.split(": ")[1].split()[0] for text in findings(os.path.join(folder, kind), first, start + 1)]
            if found != wanted:
                wrong.append(f"{kind}: found {found}, not {wanted}")
        return wrong
