/** The nonce with which this page may add style elements: the server puts it into the page. */
export function cspNonce(): string | undefined {
  return document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce;
}

/** Give the nonce to react-remove-scroll, which locks scrolling behind dialogs by a style element; it reads it from here. */
export function shareCspNonce(): void {
  Object.assign(globalThis, { __webpack_nonce__: cspNonce() });
}
