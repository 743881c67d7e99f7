// Renders \( \) and \[ \], which the Markdown extension arithmatex leaves in elements of class arithmatex.
document.addEventListener("DOMContentLoaded", () => {
  const delimiters = [
    { left: "\\(", right: "\\)", display: false },
    { left: "\\[", right: "\\]", display: true },
  ];
  for (const element of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(element, { delimiters, throwOnError: false });
  }
});
