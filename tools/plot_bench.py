"""Draws lines of JSON from the benchmark commands as an SVG file.

    python tools/plot_bench.py results.jsonl [more.jsonl ...] --x batch_size --y decode_tokens_per_s
        [--by input_len] [--log] [--title TEXT] --output plot.svg

A line is drawn for each value of --by, or for each file; points with the same x are averaged. Needs Python alone.
"""

import argparse
import json
import math
import pathlib
import xml.sax.saxutils

WIDTH, HEIGHT = 800, 480
LEFT, RIGHT, TOP, BOTTOM = 80, 180, 40, 50
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


def read(paths, x, y, by):
    """{label: {x: [y, ...]}}"""
    series = {}
    for path in paths:
        for line in pathlib.Path(path).read_text().splitlines():
            entry = json.loads(line)
            if x not in entry or y not in entry:
                continue
            label = f"{by} {entry.get(by)}" if by else pathlib.Path(path).stem
            series.setdefault(label, {}).setdefault(float(entry[x]), []).append(float(entry[y]))
    return series


def ticks(low, high):
    """Round numbers from low to high, about six of them."""
    raw = (high - low) / 5 or 1
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = math.ceil(low / step)
    return [step * i for i in range(first, math.floor(high / step) + 1)]


class Plot:
    def __init__(self, series, is_log):
        xs = [x for points in series.values() for x in points]
        ys = [mean(values) for points in series.values() for values in points.values()]
        self.is_log = is_log
        self.xs = sorted(set(xs))
        self.x_low, self.x_high = self.scale(min(xs)), self.scale(max(xs))
        self.y_high = max(ys) * 1.05 or 1
        self.parts = []

    def scale(self, x):
        return math.log2(x) if self.is_log else x

    def at(self, x, y):
        share = (self.scale(x) - self.x_low) / ((self.x_high - self.x_low) or 1)
        return (LEFT + share * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / self.y_high * (HEIGHT - TOP - BOTTOM))

    def text(self, x, y, text, anchor="middle", extra=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>'
                          f"{xml.sax.saxutils.escape(text)}</text>")

    def line(self, a, b, colour):
        self.parts.append(f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" '
                          f'stroke="{colour}"/>')

    def axes(self, x_name, y_name, title):
        for y in ticks(0, self.y_high):
            left, right = self.at(self.xs[0], y), self.at(self.xs[-1], y)
            self.line(left, right, "#ddd")
            self.text(LEFT - 6, left[1] + 4, f"{y:g}", "end")
        for x in self.xs if len(self.xs) <= 10 else ticks(self.xs[0], self.xs[-1]):
            self.text(self.at(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:g}")
        self.line(self.at(self.xs[0], 0), self.at(self.xs[-1], 0), "#333")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name)
        self.text(20, HEIGHT / 2, y_name, extra=f' transform="rotate(-90 20 {HEIGHT / 2})"')
        self.text((LEFT + WIDTH - RIGHT) / 2, 22, title, extra=' font-weight="bold"')

    def curve(self, number, label, points):
        colour = COLOURS[number % len(COLOURS)]
        places = [self.at(x, mean(points[x])) for x in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = TOP + 18 * number
        self.line((WIDTH - RIGHT + 15, y), (WIDTH - RIGHT + 35, y), colour)
        self.text(WIDTH - RIGHT + 40, y + 4, label, "start")

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
                f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def mean(values):
    return sum(values) / len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--x", default="batch_size")
    parser.add_argument("--y", default="decode_tokens_per_s")
    parser.add_argument("--by", help="a curve for each value of this key; without it for each file")
    parser.add_argument("--log", action="store_true", help="logarithmic x")
    parser.add_argument("--title", default="")
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    series = read(arguments.files, arguments.x, arguments.y, arguments.by)
    if not series:
        raise SystemExit(f"no line of these files has both {arguments.x} and {arguments.y}")
    if arguments.log and min(x for points in series.values() for x in points) <= 0:
        raise SystemExit(f"--log needs values of {arguments.x} above 0")
    plot = Plot(series, arguments.log)
    plot.axes(arguments.x, arguments.y, arguments.title)
    for number, (label, points) in enumerate(series.items()):
        plot.curve(number, label, points)
    pathlib.Path(arguments.output).write_text(plot.svg())


if __name__ == "__main__":
    main()
