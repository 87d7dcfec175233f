import { fileURLToPath } from "node:url";

import react from "@vitejs/plugin-react";
import type { PluginOption } from "vite";
import { defineConfig } from "vite";

// `npm run dev` talks to a running server (ATHANOR_URL); ATHANOR_FAKE_API=1 serves invented jobs from memory
// instead, so that the look of a page can be worked on without a stack. Neither is part of a build.
export default defineConfig(async ({ command }) => {
  const fake = command === "serve" && process.env.ATHANOR_FAKE_API === "1";
  const plugins: PluginOption[] = [react()];
  if (fake) {
    const { fakeApi } = await import("./testing/fake-api");
    plugins.push(fakeApi());
  }
  const server = process.env.ATHANOR_URL ?? "http://127.0.0.1:8000";
  return {
    base: "/",
    plugins,
    resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
    server: { host: "127.0.0.1", proxy: fake ? {} : { "/api": { target: server } } },
    build: {
      outDir: "dist",
      assetsDir: "assets",
      assetsInlineLimit: 0,
      sourcemap: false,
      chunkSizeWarningLimit: 700,
    },
  };
});
