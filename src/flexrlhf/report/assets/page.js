"use strict";

// Draws the figures of the page in its own colours, when they first come into view.

const figures = JSON.parse(document.getElementById("figures").textContent);
const darkMode = window.matchMedia("(prefers-color-scheme: dark)");

function pageColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axis(own) {
  return {
    gridcolor: pageColour("grid"),
    linecolor: pageColour("line"),
    zeroline: false,
    nticks: 6,
    exponentformat: "power",
    automargin: true,
    ...own,
  };
}

function themed(layout) {
  const isTimeline = layout.yaxis?.type === "category";
  const ink = pageColour("quiet");
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 44, r: 8, t: 10, b: isTimeline ? 44 : 28 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: pageColour("box"), bordercolor: pageColour("line") },
    ...layout,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" },
    xaxis: axis({
      showgrid: isTimeline,
      showline: true,
      unifiedhovertitle: { text: "iteration %{x}" },
      ...layout.xaxis,
    }),
    yaxis: axis({ showgrid: !isTimeline, ...layout.yaxis }),
  };
}

function draw(plot) {
  const figure = figures[plot.dataset.figure];
  if (!figure || plot.closest("[hidden]")) return;
  plot.style.height = figure.layout.height ? `${figure.layout.height}px` : "";
  Plotly.react(plot, figure.data, themed(figure.layout), {
    responsive: true,
    displaylogo: false,
    displayModeBar: false,
  });
}

function drawAll() {
  document.querySelectorAll(".plot").forEach(draw);
}

function openStage(chosen) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.setAttribute("aria-selected", String(tab === chosen));
    document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
  }
  drawAll();
}

for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => openStage(tab));
}

for (const choice of document.querySelectorAll("select[data-plot]")) {
  choice.addEventListener("change", () => {
    const plot = document.getElementById(choice.dataset.plot);
    plot.dataset.figure = choice.value;
    draw(plot);
  });
}

darkMode.addEventListener("change", drawAll);
drawAll();
