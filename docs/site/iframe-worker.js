// Lets the search work in pages that are read from a folder: browsers start no worker from a file.
// There, the worker's script runs in a hidden frame instead. Messages are copied and come later, as a
// worker's do; shared ones would clear what is being typed.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (message) => {
        const data = structuredClone(message);
        setTimeout(() => this.onmessage?.({ data }));
      };
      const script = inside.document.createElement("script");
      this.ready = new Promise((loaded, failed) => {
        script.onload = loaded;
        script.onerror = failed;
      });
      this.ready.catch((error) => this.onerror?.(error));
      script.src = new URL(address, location);
      inside.document.body.append(script);
    }

    postMessage(message) {
      const data = structuredClone(message);
      this.ready.then(() => setTimeout(() => this.frame.contentWindow?.onmessage({ data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
