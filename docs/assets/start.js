// The control above the trace on the start page. Without it the page shows one iteration.
(function () {
  "use strict";
  function start() {
    document.querySelectorAll(".mv-trace").forEach(function (trace) {
      var control = trace.querySelector(".mv-scrubber");
      var range = control.querySelector("input");
      var label = control.querySelector("output");
      var figures = trace.querySelectorAll(".mv-iteration");
      function show(iteration) {
        range.value = iteration;
        figures.forEach(function (figure) { figure.hidden = figure.dataset.iteration !== range.value; });
        label.textContent = (trace.dataset.label || "iteration {}").replace("{}", range.value);
        range.setAttribute("aria-valuetext", label.textContent);
      }
      range.addEventListener("input", function () { show(range.value); });
      control.querySelectorAll("button").forEach(function (button) {
        button.addEventListener("click", function () { show(Number(range.value) + Number(button.dataset.go)); });
      });
      control.hidden = false;
    });
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
