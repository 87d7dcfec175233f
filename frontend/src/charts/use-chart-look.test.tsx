import { act, screen } from "@testing-library/react";
import { expect, it } from "vitest";

import { ChartControls } from "@/charts/chart-controls";
import type { ChartLook } from "@/charts/use-chart-look";
import { stepsShown, useChartLook, zoomOf } from "@/charts/use-chart-look";
import { render } from "@/testing/render";

function shownAt(at: string) {
  const found: { look: ChartLook | null } = { look: null };
  const Shown = () => {
    const look = useChartLook();
    found.look = look;
    return <ChartControls look={look} timeName="Time" others={["train/entropy"]} />;
  };
  const page = render(<Shown />, { at });
  return { ...page, look: () => found.look as ChartLook };
}

it("reads the picture from the address", () => {
  const { look } = shownAt("/?axis=tokens&smooth=0.85&scale=log&chart=a&chart=b&chart=a&zoom=10-20.5");
  expect(look()).toMatchObject({ axis: "tokens", smoothing: 0.85, logarithmic: true, added: ["a", "b"] });
  expect(look().zoom).toEqual({ from: 10, to: 20.5 });
});

it("ignores what no control writes", () => {
  const { look } = shownAt("/?axis=day&smooth=7&scale=x&zoom=20-10");
  expect(look()).toMatchObject({ axis: "step", smoothing: 0, logarithmic: false, added: [], zoom: null });
});

it("writes changes to the address and leaves the rest of it alone", async () => {
  const { look, address, user } = shownAt("/?tab=overview");
  await user.click(screen.getByText("Tokens"));
  await user.click(screen.getByRole("switch", { name: "Log scale" }));
  act(() => look().reportZoom("Loss", { from: 3, to: 7.26 }));
  act(() => look().add("train/entropy"));
  expect(address()).toBe("/?tab=overview&axis=tokens&scale=log&zoom=3-7.3&chart=train%2Fentropy");
  act(() => look().remove("train/entropy"));
  await user.click(screen.getByText("Steps"));
  expect(address()).toBe("/?tab=overview&scale=log");
});

it("moves the smoothing by the keyboard", async () => {
  const { look, user } = shownAt("/");
  screen.getByRole("slider", { name: "Smoothing" }).focus();
  await user.keyboard("{End}");
  expect(look().smoothing).toBe(0.99);
});

it("knows the steps of a zoomed axis", () => {
  const counts = { steps: [0, 10], tokens: [0, 1000] };
  expect(stepsShown("tokens", zoomOf("100-250"), counts)).toEqual({ from: 1, to: 2.5 });
  expect(stepsShown("time", zoomOf("100-250"), counts)).toBeNull();
  expect(stepsShown("step", zoomOf("100-250"), counts)).toEqual({ from: 100, to: 250 });
});
