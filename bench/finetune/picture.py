"""Draws loss curves as an SVG picture that stands by itself."""
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, GAP, BOTTOM = 760, 540, 64, 16, 34, 66, 42
UPPER = 270
LINES = ("#333", "#2ca02c")
COLOURS = {"memwall": "#c0392b", "PyTorch": "#2c6fbb"}


def ticks(low, high, count=5):
    """Round numbers from `low` to `high`."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= count)
    first = math.ceil(low / step)
    return [round((first + i) * step, 10) for i in range(int(high / step - first + 1e-9) + 1)]


def picture(title, training, evaluation, deviation):
    """`training` and `evaluation`: {name: [(step, loss)]}; `deviation`: {name: [(step, relative deviation)]}, drawn on a
    logarithmic scale below. Returns the text of the SVG."""
    steps = max(k for line in training.values() for k, _ in line)
    losses = [y for lines in (training, evaluation) for line in lines.values() for _, y in line]
    margin = 0.05 * (max(losses) - min(losses)) or 0.1
    low, high = min(losses) - margin, max(losses) + margin
    # An exact zero has no logarithm: it is drawn on the floor.
    small = [y for line in deviation.values() for _, y in line if y > 0] or [1e-9]
    floor, ceiling = math.floor(math.log10(min(small))), math.floor(math.log10(max(small))) + 1
    lower = HEIGHT - BOTTOM - (UPPER + GAP)
    x = lambda k: LEFT + (WIDTH - LEFT - RIGHT) * k / steps
    y = lambda v: TOP + (UPPER - TOP) * (high - v) / (high - low)
    z = lambda v: UPPER + GAP + lower * (ceiling - max(floor, math.log10(v) if v > 0 else floor)) / (ceiling - floor)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{title}</text>']

    def grid(at, label, name, top, bottom):
        for height, text in zip(at, label):
            out.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
            out.append(f'<text x="{LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{text}</text>')
        middle = (top + bottom) / 2
        out.append(f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{name}</text>')
        for k in ticks(0, steps):
            out.append(f'<path d="M{x(k):.1f} {bottom}v4" stroke="#888"/>')
            out.append(f'<text x="{x(k):.1f}" y="{bottom + 17}" text-anchor="middle">{k:g}</text>')
        out.append(f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>')

    def line(points, height, colour, more=""):
        d = "M" + "L".join(f"{x(k):.1f} {height(v):.1f}" for k, v in points)
        out.append(f'<path d="{d}" fill="none" stroke="{colour}" {more}/>')

    losses = ticks(low, high)
    grid([y(v) for v in losses], [f"{v:g}" for v in losses], "loss", TOP, UPPER)
    powers = range(floor, ceiling + 1)
    grid([z(10.0 ** p) for p in powers], [f"1e{p}" for p in powers], "relative deviation", UPPER + GAP, HEIGHT - BOTTOM)
    # The first is drawn wide and pale, so that a second line on it leaves both to be seen.
    for i, (name, points) in enumerate(training.items()):
        line(points, y, COLOURS[name], 'stroke-width="5" stroke-opacity="0.35"' if i == 0 else 'stroke-width="1.2"')
    for i, (name, points) in enumerate(evaluation.items()):
        for k, v in points:
            more = 'fill-opacity="0.35"' if i == 0 else ""
            out.append(f'<circle cx="{x(k):.1f}" cy="{y(v):.1f}" r="{6 if i == 0 else 2.5}" fill="{COLOURS[name]}" {more}/>')
    for (name, points), colour in zip(deviation.items(), LINES):
        line(points, z, colour, 'stroke-width="1.2"')
    legend = [(n, f'stroke="{COLOURS[n]}" stroke-width="{5 if i == 0 else 1.2}" stroke-opacity="{0.35 if i == 0 else 1}"')
              for i, n in enumerate(training)]
    for i, (name, stroke) in enumerate(legend):
        out.append(f'<path d="M{LEFT + 290 + 90 * i} {TOP + 12}h22" {stroke}/>')
        out.append(f'<text x="{LEFT + 318 + 90 * i}" y="{TOP + 16}">{name}</text>')
    out.append(f'<text x="{LEFT + 318 + 90 * len(legend)}" y="{TOP + 16}">dots: evaluation</text>')
    for i, (name, colour) in enumerate(zip(deviation, LINES)):
        out.append(f'<path d="M{LEFT + 12 + 300 * i} {UPPER + GAP - 8}h22" stroke="{colour}"/>')
        out.append(f'<text x="{LEFT + 40 + 300 * i}" y="{UPPER + GAP - 4}">{name}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
