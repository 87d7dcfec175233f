import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Moment } from "@/components/moment";
import { render } from "@/testing/render";

describe("a time", () => {
  it("names the browser's zone, and is shown in UTC on hover", () => {
    render(<Moment time="2026-03-01T10:00:00Z" />);
    const shown = screen.getByText(/1 Mar 2026/);
    const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" })
      .formatToParts(new Date("2026-03-01T10:00:00Z"))
      .find((part) => part.type === "timeZoneName")?.value;
    expect(shown.textContent.endsWith(` ${zone}`)).toBe(true);
    expect(shown.title).toBe("1 Mar 2026, 10:00:00 UTC");
    expect(shown.getAttribute("dateTime")).toBe("2026-03-01T10:00:00Z");
  });

  it("that is not known is a dash", () => {
    render(<Moment time={null} />);
    expect(screen.getByText("–")).toBeTruthy();
  });
});
