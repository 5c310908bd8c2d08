// Draws every figure from the JSON beside it, and redraws its colours when the system changes between light and dark.
"use strict";

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function theme() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim();
  const line = style.getPropertyValue("--line").trim();
  const card = style.getPropertyValue("--card").trim();
  const axis = { gridcolor: line, linecolor: line, tickcolor: line };
  const update = {
    "font.color": ink,
    "font.family": getComputedStyle(document.body).fontFamily,
    "hoverlabel.bgcolor": card,
    "hoverlabel.font.color": ink,
  };
  for (const name of ["xaxis", "yaxis"]) {
    for (const [key, value] of Object.entries(axis)) update[`${name}.${key}`] = value;
  }
  return update;
}

async function draw(plot) {
  const figure = JSON.parse(document.getElementById(`${plot.id}-data`).textContent);
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  await Plotly.newPlot(plot, figure.data, figure.layout, config);
  await Plotly.relayout(plot, theme());
}

async function drawAll() {
  const plots = [...document.querySelectorAll(".plot")];
  for (const plot of plots) await draw(plot);
  document.documentElement.dataset.drawn = "yes";
  dark.addEventListener("change", () => plots.forEach((plot) => Plotly.relayout(plot, theme())));
}

drawAll();
