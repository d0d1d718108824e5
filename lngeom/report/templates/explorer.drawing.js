/* A drawing is a list of parts, which become SVG on the page, SVG in a file, or TikZ. */
const LIGHT = { ink: "#1a1d21", quiet: "#565d66", line: "#d5d9df", blue: "{{ colours.blue[0] }}", orange: "{{ colours.orange[0] }}", holds: "{{ colours.holds[0] }}" };
const TEX = { "δ": "\\delta", "γ": "\\gamma", "η": "\\eta", "θ": "\\theta", "‖": "\\|", "×": "\\times" };
const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", LOWERED = "₀₁₂₃";
const n1 = x => +x.toFixed(1);
class Drawing {
  constructor(title, x = 4) { this.parts = []; this.text("quiet", x, 12, title); }
  path(color, points, wide = 1.5, dash = false) { this.parts.push({ kind: "path", color, points, wide, dash }); }
  dot(color, x, y, r = 3, hollow = false) { this.parts.push({ kind: "dot", color, x, y, r, hollow }); }
  text(color, x, y, words, anchor = "start") { this.parts.push({ kind: "text", color, x, y, words, anchor }); }
  box(color, x, y, w, h, opacity = 1) { this.parts.push({ kind: "box", color, x, y, w, h, opacity }); }
  svg(paint) {
    return this.parts.map(p => {
      const c = paint(p.color);
      if (p.kind === "path") return `<polyline ${c} points="${p.points.map(q => q.map(n1)).join(" ")}" fill="none" stroke="currentColor" stroke-width="${p.wide}"${p.dash ? ' stroke-dasharray="4 4"' : ""}/>`;
      if (p.kind === "dot") return `<circle ${c} cx="${n1(p.x)}" cy="${n1(p.y)}" r="${p.r}" fill="${p.hollow ? "none" : "currentColor"}" stroke="currentColor" stroke-width="1.3"/>`;
      if (p.kind === "box") return `<rect ${c} x="${n1(p.x)}" y="${n1(p.y)}" width="${n1(p.w)}" height="${n1(p.h)}" fill="currentColor" fill-opacity="${p.opacity}"/>`;
      return `<text ${c} x="${n1(p.x)}" y="${n1(p.y)}" text-anchor="${p.anchor}" fill="currentColor">${p.words}</text>`;
    }).join("");
  }
  file() {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 340 260" width="340" height="260" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>${this.svg(color => `color="${LIGHT[color]}"`)}</svg>`;
  }
  tikz() {
    const at = (x, y) => `(${n1(x)},${n1(y)})`, plain = (m, from) => [...m].map(c => "0123456789-"[from.indexOf(c)]).join("");
    const words = s => s.replace(/[⁰¹²³⁴-⁹⁻]+/g, m => `$^{${plain(m, RAISED)}}$`).replace(/[₀-₃]+/g, m => `$_{${plain(m, LOWERED)}}$`)
      .replace(/[δγηθ‖×]/g, c => `$${TEX[c]}$`).replaceAll("$$", "");
    const sides = { start: "base west", middle: "base", end: "base east" };
    const line = p => {
      if (p.kind === "path") return `\\draw[ln${p.color}, line width=${p.wide / 2}pt${p.dash ? ", dashed" : ""}] ${p.points.map(q => at(...q)).join(" -- ")};`;
      if (p.kind === "dot") return `\\${p.hollow ? "draw" : "fill"}[ln${p.color}] ${at(p.x, p.y)} circle[radius=${n1(p.r * .7)}pt];`;
      if (p.kind === "box") return `\\fill[ln${p.color}, opacity=${p.opacity}] ${at(p.x, p.y)} rectangle ${at(p.x + p.w, p.y + p.h)};`;
      return `\\node[ln${p.color}, anchor=${sides[p.anchor]}, inner sep=0pt, font=\\scriptsize] at ${at(p.x, p.y)} {${words(p.words)}};`;
    };
    const colors = Object.entries(LIGHT).map(([k, v]) => `\\definecolor{ln${k}}{HTML}{${v.slice(1).toUpperCase()}}`);
    return [...colors, "\\begin{tikzpicture}[x=0.7pt, y=-0.7pt]", ...this.parts.map(line), "\\end{tikzpicture}", ""].join("\n");
  }
}
