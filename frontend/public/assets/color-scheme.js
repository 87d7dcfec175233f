// Runs before the first paint, so that a dark page never flashes white. A file of its own, so that a
// content security policy needs no exception for inline scripts.
(function () {
  var chosen = null;
  try {
    chosen = localStorage.getItem("athanor-color-scheme");
  } catch (error) {
    chosen = null; // storage is forbidden: follow the system
  }
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  var scheme = chosen === "light" || chosen === "dark" ? chosen : dark ? "dark" : "light";
  document.documentElement.setAttribute("data-mantine-color-scheme", scheme);
})();
