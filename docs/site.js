// A formula in a line of text that is wider than the text, on a narrow screen, can be
// scrolled: see `site.css`.
const markWide = () => {
  for (const formula of document.querySelectorAll("span.arithmatex")) {
    const text = formula.closest("p, li, td, dd, div");
    const { width } = formula.firstElementChild.getBoundingClientRect();
    formula.classList.toggle("wide", width > text.clientWidth);
  }
};

// Formulas are marked by arithmatex; code with dollars is left alone.
window.MathJax = {
  tex: {
    inlineMath: [["\\(", "\\)"]],
    displayMath: [["\\[", "\\]"]],
  },
  options: {
    ignoreHtmlClass: ".*|",
    processHtmlClass: "arithmatex",
    // It would load more than the site has.
    enableMenu: false,
  },
  startup: {
    pageReady: async () => {
      await MathJax.startup.defaultPageReady();
      markWide();
      window.addEventListener("resize", markWide);
    },
  },
};
