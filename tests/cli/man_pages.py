#!/usr/bin/env python3
"""Every exported name has a manual page that man finds, and its synopsis is what the compiler reads in the headers.

usage: tests/cli/man_pages.py <build folder> <C compiler>

groff and lexgrog find nothing wrong with any page, and each fits into 80 columns. A header of another form than ours is an error.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
failures = []


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode or done.stderr.strip():
        failures.append(f"{command[0]}: status {done.returncode}: {done.stderr.strip()[:2000]}")
    return done.stdout


def squeeze(code):
    """Spaces only where two words need one."""
    return re.sub(r" ?([^\w ]) ?", r"\1", re.sub(r"\s+", " ", code)).strip()


def exported():
    with open(os.path.join(ROOT, "src", "shoal.map"), encoding="utf-8") as file:
        return re.findall(r"^\s*(shoal_\w+);", file.read(), re.MULTILINE)


def declared(cc):
    """What the compiler's preprocessor leaves of the headers: the declarations of each function."""
    text = run(cc, "-E", "-P", "-D__attribute__(x)=", "-I", os.path.join(ROOT, "include"), "-x", "c", "-", input="#include <shoal/shoal.h>\n")
    found = {}
    for code in re.sub(r"\b_Bool\b", "bool", text).split(";"):
        name = re.search(r"\b(shoal_\w+) ?\(", code)
        if name and "{" not in code:
            found.setdefault(name.group(1), set()).add(squeeze(code).lstrip("}"))
    return found


def rendered(folder):
    """The text of each page, as on a terminal of 80 columns."""
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".3")]
    pages = []
    for path in files:
        with open(path, encoding="utf-8") as file:
            link = re.match(r"\.so man3/(.*)", file.read())
        if not link:
            pages.append(path)
        elif not os.path.exists(os.path.join(folder, link.group(1))):
            failures.append(f"{path}: leads to {link.group(1)}, which does not exist")
    # What apropos will know. lexgrog takes a hundredth of a second for each page, so it reads some of them.
    for line in run("lexgrog", *pages[::20]).splitlines():
        if not re.match(r'(.*)/(\w+)\.3: "\w+ - .{8,}"$', line):
            failures.append(f"lexgrog: {line}")
    text = run("groff", "-Kutf8", "-t", "-man", "-Tutf8", "-ww", "-rLL=78n", "-P-cbou", os.path.join(folder, "../man1/shoal.1"), *pages)
    parts = re.split(r"^(\w+)\(3\) .* \1\(3\)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def check_refusals():
    """A declaration that the generator does not understand, or that has no comment, is an error with its line."""
    bad = {
        "extern int shoal_planted;": "does not understand: extern int shoal_planted;",
        "\nvoid shoal_planted(void);": "no comment above shoal_planted",
        "/* A union. */\ntypedef union shoal_planted {\n    int x;\n} shoal_planted;": "does not understand: typedef union",
    }
    for code, words in bad.items():
        with tempfile.TemporaryDirectory() as root:
            for folder in ("docs/man", "include"):
                shutil.copytree(os.path.join(ROOT, folder), os.path.join(root, folder))
            with open(os.path.join(root, "include/shoal/log.h"), "a", encoding="utf-8") as file:
                file.write(code + "\n")
            done = subprocess.run([os.path.join(root, "docs/man/pages.py"), "--names"], capture_output=True, text=True)
            if not done.returncode or not re.search(rf"log\.h:\d+: .*{re.escape(words)}", done.stderr):
                failures.append(f"{code!r}: status {done.returncode}: {done.stderr}")


def main():
    build, cc = sys.argv[1:]
    check_refusals()
    names = exported()
    folder = os.path.join(build, "man")
    pages = rendered(os.path.join(folder, "man3"))
    # Also a type, and constants, which are links: man gives the page that they lead to.
    others = {"shoal_queue_options": "shoal_queue_options", "SHOAL_FOREVER": "SHOAL_MS", "SHOAL_EINVAL": "shoal_err"}
    found = run("man", "-M", folder, "-w", *names, *others).split()
    if [os.path.basename(path) for path in found] != [name + ".3" for name in [*names, *others.values()]]:
        failures.append("man finds other pages: " + " ".join(set(names) ^ {os.path.basename(path)[:-2] for path in found}))

    headers = declared(cc)
    for name in names:
        if name not in pages:
            failures.append(f"{name}: no page of its own")
            continue
        section = re.search(r"^SYNOPSIS$(.*?)^\w", pages[name], re.MULTILINE | re.DOTALL).group(1)
        code = {squeeze(part) for part in re.sub(r"^\s*#.*$", "", section, flags=re.MULTILINE).split(";")}
        if not code & headers.get(name, set()):
            failures.append(f"{name}: its synopsis differs from the header: {headers.get(name)}")
        if not re.search(rf"^NAME\n +{name} - .{{8}}", pages[name], re.MULTILINE):
            failures.append(f"{name}: its page has another NAME, or says little there")
    for name, page in pages.items():
        failures.extend(f"{name}: over 80 columns: {line}" for line in page.splitlines() if len(line) > 80)

    for text in failures:
        print("FAIL:", text, file=sys.stderr)
    print(f"{len(names)} exported names, {len(pages)} pages")
    return 1 if failures or len(names) < 400 else 0


if __name__ == "__main__":
    sys.exit(main())
