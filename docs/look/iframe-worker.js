"use strict";
// A browser starts no worker for a page that was opened from disk, and the search of the site runs in one. Opened so,
// the worker's script runs in a hidden frame instead, which is given what would be sent to the worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const start = () => {
        document.body.append(frame);
        this.inside = frame.contentWindow;
        this.inside.postMessage = (data) => {
          const answer = new MessageEvent("message", { data });
          this.dispatchEvent(answer);
          if (typeof this.onmessage === "function") this.onmessage(answer);
        };
        const script = frame.contentDocument.createElement("script");
        script.src = address;
        script.onload = () => {
          for (const data of this.waiting) this.send(data);
          this.waiting = null;
        };
        frame.contentDocument.head.append(script);
      };
      this.terminate = () => frame.remove();
      if (document.body) start();
      else document.addEventListener("DOMContentLoaded", start);
    }

    send(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }
  };
}
