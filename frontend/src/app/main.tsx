import "@fontsource-variable/geist";
import "@fontsource-variable/geist-mono";
import "@mantine/core/styles.css";
import "@mantine/notifications/styles.css";
import "uplot/dist/uPlot.min.css";

import "./tokens.css";
import "./global.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { Providers } from "@/app/providers";
import { shareCspNonce } from "@/lib/csp";

shareCspNonce();

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no element #root");
createRoot(root).render(
  <StrictMode>
    <Providers />
  </StrictMode>,
);
