import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { ChartCard } from "@/charts/chart-card";
import { render } from "@/testing/render";

const line = (label: string, ...values: (number | null)[]) => ({
  label,
  color: "--series-1",
  series: { steps: values.map((_, at) => at), values },
});

describe("chart card", () => {
  it("shows that there are no values yet, without a picture", () => {
    render(<ChartCard title="Loss" lines={[line("training")]} axis="step" group="g" unit="loss" />);
    expect(screen.getByRole("region", { name: "Loss" }).textContent).toContain("No values yet");
    expect(screen.queryByRole("img")).toBeNull();
  });

  it("reads the last value of each line out in place of the picture", () => {
    const lines = [line("training", 3, 2.5), line("validation", 4, 3.25, null)];
    render(<ChartCard title="Loss" lines={lines} axis="step" group="g" unit="loss" />);
    expect(screen.getByRole("img").getAttribute("aria-label")).toBe("Loss: training 2.5000, validation 3.2500");
  });

  it("draws once there are values", () => {
    const card = (...values: number[]) => (
      <ChartCard title="Loss" lines={[line("training", ...values)]} axis="step" group="g" unit="loss" />
    );
    const { container, rerender } = render(card());
    expect(container.querySelector("canvas")).toBeNull();
    rerender(card(3, 2));
    expect(container.querySelector("canvas")).not.toBeNull();
  });

  it("names its lines in the legend only where there are several", () => {
    const legend = (...labels: string[]) => {
      const lines = labels.map((label) => line(label, 1, 2));
      const { container, unmount } = render(<ChartCard title="Loss" lines={lines} axis="step" group="g" unit="loss" />);
      const text = container.querySelector("[aria-hidden=true]")?.textContent;
      unmount();
      return text;
    };
    expect(legend("training")).toBe("2.0000");
    expect(legend("training", "validation")).toBe("training2.0000validation2.0000");
  });
});
