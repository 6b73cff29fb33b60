"use strict";
// Shows the values under the pointer, or those chosen with the arrow keys. The curves are already drawn.
window.onerror = (text) => { document.documentElement.dataset.error = text; };
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const column = (key) => key.split(".").reduce((part, name) => part[name], run);
  const grouped = (x) => Math.round(x).toLocaleString("en-US");
  const fixed = (x, digits) => x.toFixed(digits).replace(/^-(?=[0.]*$)/, "");
  const two = (x) => String(Math.floor(x)).padStart(2, "0");
  const formats = {
    plain: (x) => fixed(x, Math.abs(x) < 10 ? 4 : 2),
    count: grouped,
    percent: (x) => (100 * x).toFixed(2) + " %",
    seconds: (x) => (x < 120 ? x.toFixed(1) + " s" : x < 3600 ? Math.floor(x / 60) + ":" + two(x % 60) + " min"
      : Math.floor(x / 3600) + ":" + two(x / 60 % 60) + ":" + two(x % 60) + " h"),
  };

  // Returns the index of the value nearest to x. The values are in increasing order.
  const nearest = (values, x) => {
    let low = 0, high = values.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle] < x) low = middle; else high = middle;
    }
    return high > low && values[high] - x < x - values[low] ? high : low;
  };

  const make = (name, attributes, parent) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    return parent.appendChild(element);
  };

  const connect = (svg) => {
    const d = svg.dataset, left = +d.left, right = +d.right, top = +d.top, bottom = +d.bottom;
    const most = +d.xMost, low = +d.yLeast, high = +d.yMost;
    const toX = (x) => left + (right - left) * x / most;
    const toY = (y) => bottom - (bottom - top) * (+d.log ? Math.log(y / low) / Math.log(high / low) : (y - low) / (high - low));
    const curves = [...svg.querySelectorAll(".curve, .area")].map((path) => {
      const y = column(path.dataset.y), known = (_, i) => y[i] !== null;
      return {
        name: path.dataset.name || "value", x: column(path.dataset.x).filter(known), y: y.filter(known),
        color: [...path.classList].find((c) => /^c\d$/.test(c)),
      };
    }).filter((curve) => curve.x.length > 0);
    if (curves.length === 0) return 0;
    const line = make("path", {class: "cursor", visibility: "hidden"}, svg);
    const dots = curves.map((curve) => make("circle", {class: "dot " + curve.color, r: 4, visibility: "hidden"}, svg));
    const tip = svg.parentNode.appendChild(document.createElement("div"));
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("role", "status");
    let at = 0;

    const hide = () => {
      tip.hidden = true;
      for (const element of [line, ...dots]) element.setAttribute("visibility", "hidden");
    };
    const show = (x) => {
      at = Math.min(Math.max(x, 0), most);
      tip.textContent = formats[d.xUnit](at) + (d.xUnit === "count" ? " " + svg.querySelector(".name").textContent : "");
      curves.forEach((curve, i) => {
        const k = nearest(curve.x, at), y = curve.y[k];
        dots[i].setAttribute("visibility", "visible");
        dots[i].setAttribute("cx", toX(curve.x[k]));
        dots[i].setAttribute("cy", toY(y));
        const row = tip.appendChild(document.createElement("div"));
        const key = row.appendChild(document.createElement("i"));
        key.className = curve.color;
        row.append(curve.name);
        row.appendChild(document.createElement("b")).textContent = formats[d.yUnit](y);
      });
      line.setAttribute("d", "M" + toX(at) + " " + top + "V" + bottom);
      line.setAttribute("visibility", "visible");
      tip.hidden = false;
      const scale = svg.clientWidth / svg.viewBox.baseVal.width, place = toX(at) * scale;
      const turn = place + tip.offsetWidth + 20 > svg.clientWidth;
      tip.style.transform = "translate(" + (turn ? place - tip.offsetWidth - 12 : place + 12) + "px, " + top * scale + "px)";
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      if (x < left - 8 || x > right + 8) hide(); else show((x - left) / (right - left) * most);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (event.key === "Escape") hide();
      if (step === undefined) return;
      show(at + step * most / 100);
      event.preventDefault();
    });
    return curves.length;
  };

  let connected = 0;
  for (const svg of document.querySelectorAll(".plot svg")) connected += connect(svg);
  document.documentElement.dataset.curves = connected;
})();
