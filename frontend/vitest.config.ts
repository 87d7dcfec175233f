import { fileURLToPath } from "node:url";

import { defineConfig } from "vitest/config";

// Apart from vite.config.ts, so that a build needs no development dependency.
export default defineConfig({
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  test: {
    projects: [
      { extends: true, test: { name: "functions", include: ["src/**/*.test.ts"], environment: "node" } },
      {
        extends: true,
        test: {
          name: "components",
          include: ["src/**/*.test.tsx"],
          environment: "jsdom",
          setupFiles: ["src/testing/set-up.ts"],
        },
      },
    ],
  },
});
