import type { MantineColorsTuple } from "@mantine/core";
import { createTheme, localStorageColorSchemeManager, Modal } from "@mantine/core";

/** The furnace: one warm accent on stone greys. Statuses have colours of their own (tokens.css). */
const ember: MantineColorsTuple = [
  "#fff4ec",
  "#ffe7d6",
  "#ffcda8",
  "#fdb079",
  "#fb954d",
  "#f97b22",
  "#e0620d",
  "#bd4b08",
  "#963b0b",
  "#77310e",
];

const stone: MantineColorsTuple = [
  "#faf9f7",
  "#f4f2ef",
  "#e8e5e1",
  "#d8d4cf",
  "#beb8b0",
  "#78716a",
  "#5c564f",
  "#453f3a",
  "#2a2622",
  "#1b1815",
];

const night: MantineColorsTuple = [
  "#e4e0db",
  "#bdb7b0",
  "#a09991",
  "#6b655e",
  "#3a3531",
  "#2a2623",
  "#221f1c",
  "#161412",
  "#100e0d",
  "#0a0908",
];

export const theme = createTheme({
  colors: { ember, gray: stone, dark: night },
  primaryColor: "ember",
  primaryShade: 7,
  defaultRadius: "md",
  cursorType: "pointer",
  fontFamily: '"Geist Variable", system-ui, sans-serif',
  fontFamilyMonospace: '"Geist Mono Variable", ui-monospace, monospace',
  headings: { fontWeight: "600" },
  respectReducedMotion: true,
  components: {
    Modal: Modal.extend({
      defaultProps: {
        radius: "lg",
        closeButtonProps: { "aria-label": "Close" },
        // Mantine draws it as <header>, which outside of an article would be a second banner of the page.
        attributes: { header: { role: "presentation" } },
        styles: { title: { fontWeight: 600 } },
      },
    }),
  },
});

/** The key is also read by public/assets/color-scheme.js, before anything else runs. */
export const colorSchemes = localStorageColorSchemeManager({ key: "athanor-color-scheme" });
