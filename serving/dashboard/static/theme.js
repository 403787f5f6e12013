// Loaded before the page is drawn, so that a chosen theme does not flash the other one.
"use strict";
{
  const KEY = "sharded-infer-theme";
  const remembered = () => {
    // Storage may be refused; the choice then lasts as long as the page.
    try { return localStorage.getItem(KEY) ?? ""; } catch { return ""; }
  };
  const apply = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  apply(remembered());
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = remembered();
    choice.addEventListener("change", () => {
      try { localStorage.setItem(KEY, choice.value); } catch { /* see above */ }
      apply(choice.value);
      document.dispatchEvent(new Event("themechange"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      document.dispatchEvent(new Event("themechange"));
    });
  });
}
