// The search runs in a Worker, which browsers refuse to a page that is read from disk. There, a hidden frame of
// the same page does its work. The theme knows this file by its name, and takes it in place of a remote one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.worker = this
      this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve, { once: true }))
      const reply = "window.postMessage = (data) => frameElement.worker.dispatch(window, data)"
      this.frame.srcdoc = `<script>${reply}</script><script src="${new URL(url, location)}"></script>`
      document.body.append(this.frame)
    }

    dispatch(target, data) {
      const receiver = target === this.frame.contentWindow ? this : this.frame.contentWindow
      receiver.dispatchEvent(new MessageEvent("message", { data }))
    }

    async postMessage(data) {
      await this.loaded
      this.dispatch(window, data)
    }
  }
}
