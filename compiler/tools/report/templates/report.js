(() => {
  "use strict";
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const stored = () => { try { return localStorage.getItem("sscc-theme"); } catch { return null; } };
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (stored() === "dark" || stored() === "light") root.dataset.theme = stored();
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("sscc-theme", root.dataset.theme); } catch { /* without storage the choice is not remembered */ }
  });

  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const all = [...document.getElementById(button.dataset.toggle).querySelectorAll("details.pass")];
      const open = !all.every((item) => item.open);
      for (const item of all) item.open = open;
    });
  }

  // Highlight the link of the current section.
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const sections = [...document.querySelectorAll("main > section")];
  const mark = () => {
    const at = sections.filter((section) => section.getBoundingClientRect().top < 140).pop() || sections[0];
    for (const [key, link] of links) {
      if (key === at.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", mark, { passive: true });
  mark();

  // Scroll wide graphs to their middle, where most stages are.
  const centre = (scope) => {
    for (const graph of scope.querySelectorAll("svg.graph")) {
      const frame = graph.parentElement;
      frame.scrollLeft = (frame.scrollWidth - frame.clientWidth) / 2;
    }
  };
  centre(document);
  for (const kernel of document.querySelectorAll("details.kernel")) kernel.addEventListener("toggle", () => centre(kernel), { once: true });

  // Fade each edge of a sideways scrolling box behind which there is more.
  const fade = (box) => {
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  const resized = new ResizeObserver((entries) => { for (const entry of entries) fade(entry.target); });
  for (const box of document.querySelectorAll(".scroll, .diff, nav ul")) {
    box.addEventListener("scroll", () => fade(box), { passive: true });
    resized.observe(box);
  }

  // Show the tokens that one layer or one of its heads keeps.
  const part = document.getElementById("kept-part");
  if (part) {
    const names = ["evicted", "stored", "selected", "recent", "sink"];
    const words = [...document.getElementById("kept-text").children];
    const whole = words.map((word) => [word.className, word.title]);
    const rows = [...document.getElementById("kept-rows").children].map((row) => [row.dataset.part, row.textContent]);
    document.getElementById("kept-choice").hidden = false;
    part.addEventListener("change", () => {
      const shown = rows.filter(([name]) => name === part.value || name.split(":")[0] === part.value).map(([, row]) => row);
      words.forEach((word, at) => {
        if (!shown.length) { [word.className, word.title] = whole[at]; return; }
        const reasons = shown.map((row) => Number(row[at]));
        const share = reasons.filter((reason) => reason >= 2).length / reasons.length;
        const name = names[Math.max(...reasons)];
        word.className = name + " s" + Math.ceil(share * 4);
        word.title = "position " + at + ": " + name + (shown.length > 1 ? ", kept by " + Math.round(100 * share) + "% of heads" : "");
      });
    });
  }

  // Open everything for printing.
  addEventListener("beforeprint", () => { for (const item of document.querySelectorAll("details")) item.open = true; });
})();
