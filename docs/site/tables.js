// Tables that are wider than the page scroll, by the keyboard too.
addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap, .highlight code")) {
    table.tabIndex = 0;
  }
});
