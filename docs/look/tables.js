"use strict";
// A table that goes on beyond its frame says so: many systems hide scroll bars.
const cues = () => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap")) {
    const wide = frame.scrollWidth > frame.clientWidth + 2;
    frame.classList.toggle("wide", wide);
    // Long texts among numbers get room there, or each of them makes its row as high as a page.
    for (const cell of wide ? frame.querySelectorAll("td") : []) cell.classList.toggle("long", cell.textContent.length > 40);
    const before = frame.previousElementSibling;
    const there = before !== null && before.classList.contains("cue");
    if (wide && !there) {
      const cue = document.createElement("p");
      cue.className = "cue";
      cue.textContent = "More columns to the right: scroll sideways \u2192";
      frame.before(cue);
    } else if (!wide && there) before.remove();
  }
};
window.addEventListener("load", cues);
window.addEventListener("resize", cues);
