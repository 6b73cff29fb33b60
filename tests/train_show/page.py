"""Reads a report page: its numbers and its curves. Checks that it needs no other file."""
import html.parser
import json
import math
import re

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.open, self.elements, self.texts = [], [], {}
        with open(path, encoding="utf-8") as file:
            self.source = file.read()
        self.feed(self.source)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        self.run = json.loads(self.texts["run"])

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), list(self.open)))
        if tag not in VOID:
            self.open.append(tag + "#" + (dict(attributes).get("id") or ""))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), list(self.open)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1].startswith(tag + "#"), f"</{tag}> closes {self.open[-1:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data):
        for place in self.open:
            name = place.split("#")[1] or place.split("#")[0]
            self.texts[name] = self.texts.get(name, "") + data

    def column(self, key):
        found = self.run
        for name in key.split("."):
            found = found[name]
        return found


def alone(page):
    """Nothing is loaded from anywhere."""
    for tag, attributes, _ in page.elements:
        for name in ("src", "href", "data", "srcset", "action", "poster"):
            assert name not in attributes, f"<{tag} {name}={attributes[name]!r}>"
    assert "url(" not in page.source and "@import" not in page.source and "import(" not in page.source
    for word in ("fetch(", "XMLHttpRequest", "WebSocket", "sendBeacon"):
        assert word not in page.source, word


def curves(page):
    """Each curve drawn, as {(figure, name): points}; asserts that its path is that of the numbers in the page."""
    found, svg = {}, None
    for tag, attributes, above in page.elements:
        if tag == "svg" and "data-x-most" in attributes:
            svg = {name[5:]: attributes[name] for name in attributes if name.startswith("data-")}
        if tag != "path" or "data-y" not in attributes:
            continue
        pairs = list(zip(page.column(attributes["data-x"]), page.column(attributes["data-y"])))
        pairs = [(x, y) for x, y in pairs if y is not None]
        drawn = [tuple(map(float, point)) for point in re.findall(r"[ML]([-0-9.]+) ([-0-9.]+)", attributes["d"])]
        assert int(attributes["data-points"]) == len(pairs), attributes
        if attributes["class"].startswith("curve"):
            assert len(drawn) == len(pairs), (attributes["data-name"], len(drawn), len(pairs))
        for (x, y), (px, py) in zip(pairs, drawn):
            wanted_x, wanted_y = place(svg, x, y)
            assert abs(px - wanted_x) < 0.06 and abs(py - wanted_y) < 0.06, (attributes["data-name"], x, y, px, py)
        if pairs:
            assert math.isclose(float(attributes["data-last"]), pairs[-1][1], rel_tol=1e-6)
        figure = [name.split("#")[1] for name in above if name.startswith("figure#")][-1]
        found[figure, attributes["data-name"]] = pairs
    return found


def place(svg, x, y):
    left, right, top, bottom = (float(svg[name]) for name in ("left", "right", "top", "bottom"))
    least, most = float(svg["y-least"]), float(svg["y-most"])
    share = math.log(y / least) / math.log(most / least) if svg["log"] == "1" else (y - least) / (most - least)
    assert -1e-6 <= share <= 1 + 1e-6, f"{y} lies outside of the axis from {least} to {most}"
    return left + (right - left) * x / float(svg["x-most"]), bottom - (bottom - top) * share
