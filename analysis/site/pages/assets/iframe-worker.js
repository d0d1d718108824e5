// Search without a server: browsers start no worker from a file, so a hidden frame runs the worker's script.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    const inner = frame.contentWindow;
    inner.document.open();
    inner.document.write(
      "<!doctype html><script>" +
        "postMessage = data => parent.postMessage(data, '*');" +
        "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {" +
        "const script = document.createElement('script');" +
        "script.src = url; script.onload = done; script.onerror = failed; document.body.appendChild(script);" +
        "})), Promise.resolve());" +
        '</script><body><script src="' + url + '"></script></body>'
    );
    inner.document.close();
    const loaded = new Promise(done => inner.addEventListener("load", done));
    window.addEventListener("message", event => {
      if (event.source !== inner) return;
      event.stopImmediatePropagation();
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
    this.postMessage = data => loaded.then(() => inner.dispatchEvent(new MessageEvent("message", { data })));
    this.terminate = () => frame.remove();
  }
}
window.IFrameWorker = IFrameWorker;
if (location.protocol === "file:") window.Worker = IFrameWorker;
