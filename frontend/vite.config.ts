import { fileURLToPath } from "node:url";

import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// `npm run dev` talks to a running server: ATHANOR_URL is the address that `make up` prints.
const server = process.env.ATHANOR_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "/",
  // The server replaces it by a new nonce in each answer (platform/athanor/api/site.py).
  html: { cspNonce: "ATHANOR_CSP_NONCE" },
  plugins: [react()],
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  // The browser's Host header is kept: Django compares it with the Origin of unsafe requests.
  server: { host: "127.0.0.1", proxy: Object.fromEntries(["/api", "/docs"].map((path) => [path, { target: server, changeOrigin: false }])) },
  build: {
    outDir: "dist",
    assetsDir: "assets",
    // Fonts as files: a strict content security policy allows no data: addresses.
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
  },
});
