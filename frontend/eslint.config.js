import { readdirSync } from "node:fs";

import js from "@eslint/js";
import a11y from "eslint-plugin-jsx-a11y";
import hooks from "eslint-plugin-react-hooks";
import globals from "globals";
import ts from "typescript-eslint";

// Code flows one way: lib, api -> charts, components -> features -> app. The zones are made from the folders that
// exist, so that a new feature is fenced in from its first file.
const forbid = (group, message) => ({ group, message });
const features = readdirSync(new URL("./src/features", import.meta.url));
const upwards = forbid(["../../*"], "Use @/ for anything outside this folder's parent.");
const shared = forbid(["@/features/**", "@/app/**"], "Shared code may not know a feature or the app.");

const zone = (files, patterns) => ({
  files,
  rules: { "no-restricted-imports": ["error", { patterns: [upwards, ...patterns] }] },
});

const featureZones = features.map((feature) =>
  zone(
    [`src/features/${feature}/**`],
    [
      forbid(["@/app/**"], "A feature may not know the app."),
      forbid(
        features.filter((other) => other !== feature).map((other) => `@/features/${other}/**`),
        "Features never import each other: move what both need to api, components or lib.",
      ),
    ],
  ),
);

export default ts.config(
  { ignores: ["dist", "node_modules", "src/api/schema.gen.ts", "public"] },
  js.configs.recommended,
  ...ts.configs.strictTypeChecked.map((config) => ({ ...config, files: ["**/*.{ts,tsx}"] })),
  {
    files: ["**/*.{ts,tsx}"],
    languageOptions: { globals: globals.browser, parserOptions: { projectService: true } },
    rules: {
      "max-lines": ["error", { max: 400 }],
      // A number in a label reads well as it is; objects and null are still refused.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
    },
  },
  { files: ["src/**/*.{ts,tsx}"], ...a11y.flatConfigs.strict },
  { files: ["src/**/*.{ts,tsx}"], ...hooks.configs.flat["recommended-latest"] },
  { files: ["*.js"], languageOptions: { globals: globals.node } },
  zone(["src/{api,lib,charts,components}/**"], [shared]),
  zone(
    ["src/{api,lib}/**"],
    [shared, forbid(["@/components/**", "@/charts/**"], "lib and api draw nothing.")],
  ),
  ...featureZones,
);
