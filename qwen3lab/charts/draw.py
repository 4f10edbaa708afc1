"""Vega-Lite becomes SVG (vl-convert, no browser and no network), or, in an interactive page, is left to one script."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from qwen3lab.charts import theme

Spec = dict[str, Any]

# What an element need not say: a drawing is one image to assistive technology, nothing in it is addressed by class, and
# a hundredth of a px is more than a screen has. It is half of the bytes. And a drawing leads nowhere.
_IDLE = re.compile(r' (?:class|role|aria-[a-z]+|pointer-events|(?:xlink:)?href)="[^"]*"| opacity="1"|(?<=\d\.\d\d)\d+')


def draw(spec: Spec, prefix: str) -> str:
    """Vega-Lite as an SVG element that shrinks with its room; its ids are numbered from 1 under `prefix`.

    vl-convert numbers clip paths through the life of the process, so the same chart would differ from one call to the
    next, and two charts in one page could clip each other. A spec is never allowed to fetch data.
    """
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg({**spec, "config": theme.config()}, allowed_base_urls=[])
    ids = {old: f"{prefix}-{i}" for i, old in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)), start=1)}
    for old, new in ids.items():
        svg = svg.replace(f'id="{old}"', f'id="{new}"').replace(f"url(#{old})", f"url(#{new})")
    svg = re.sub(r"<[^>]+>", lambda tag: _IDLE.sub("", tag[0]), svg)
    size = r'^<svg ([^>]*?) width="([\d.]+)" height="[\d.]+"'
    return re.sub(size, r'<svg aria-hidden="true" focusable="false" style="max-width:\2px" \1', svg)


@cache
def script() -> str:
    """The one script of an interactive page: Vega, and the lines that bring each figure to life."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle(_ENLIVEN)
    return bundle.replace("</script", "<\\/script")


# Each drawing is replaced where it stands, so that without script nothing is lost.
_ENLIVEN = """
for (const figure of document.querySelectorAll('.q-figure')) {
  const text = figure.querySelector('script.q-spec');
  if (!text) continue;
  for (const [name, spec] of Object.entries(JSON.parse(text.textContent))) {
    vegaEmbed(figure.querySelector('.q-' + name), spec, {renderer: 'svg', actions: false});
  }
}
""".strip()
