import { MantineProvider } from "@mantine/core";
import { Notifications } from "@mantine/notifications";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render as renderBare } from "@testing-library/react";
import { userEvent } from "@testing-library/user-event";
import type { ReactNode } from "react";
import { MemoryRouter, Route, Routes, useLocation } from "react-router";

import { theme } from "@/app/theme";

interface Place {
  /** The address that the page is opened at. */
  at?: string;
  /** The route of the component, where it reads parts of the address: "/jobs/:jobId". */
  path?: string;
}

/** Render with the app's providers. `address()` is where the router is now. */
export function render(ui: ReactNode, { at = "/", path }: Place = {}) {
  let shown = at;
  const Address = () => {
    const { pathname, search } = useLocation();
    shown = pathname + search;
    return null;
  };
  // Nothing is retried, so that a refusal is seen immediately.
  const client = new QueryClient({
    defaultOptions: { queries: { retry: false, networkMode: "always" }, mutations: { networkMode: "always" } },
  });
  const page = (content: ReactNode) => (
    <MantineProvider theme={theme} env="test">
      <QueryClientProvider client={client}>
        <Notifications />
        <MemoryRouter initialEntries={[at]}>
          <Address />
          {path === undefined ? (
            content
          ) : (
            <Routes>
              <Route path={path} element={content} />
              <Route path="*" element={null} />
            </Routes>
          )}
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>
  );
  const { rerender, container, unmount } = renderBare(page(ui));
  return {
    user: userEvent.setup(),
    address: () => shown,
    rerender: (next: ReactNode) => rerender(page(next)),
    container,
    unmount,
    client,
  };
}
