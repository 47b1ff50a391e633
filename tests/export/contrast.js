// Every visible text whose contrast with what is behind it is less than 4.5 (WCAG AA), as a list of what it says.
() => {
  const parts = (text) => {
    const c = text.match(/[\d.]+/g).map(Number);
    const scale = text.startsWith("color(srgb") ? 255 : 1;
    return [c[0] * scale, c[1] * scale, c[2] * scale, c[3] ?? 1];
  };
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parts(getComputedStyle(e).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const poor = [];
  for (const e of document.querySelectorAll("h1, h2, p, li, td, th, button, small, code, mark, .req, .row, .block")) {
    const hasText = [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!hasText || !e.checkVisibility() || e.disabled || e.closest(".unseen")) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${e.className} ${e.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
  }
  return poor;
}
