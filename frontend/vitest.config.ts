import { fileURLToPath } from "node:url";

import { defineConfig } from "vitest/config";

// Apart from vite.config.ts, so that a build needs no development dependency.
export default defineConfig({
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  test: {
    // Threads start faster than processes, and one load of the libraries serves all files of a thread; what a test
    // changes is undone in src/testing/set-up.ts.
    pool: "threads",
    isolate: false,
    // A machine that runs the browser suite beside it is slow.
    testTimeout: 20_000,
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
