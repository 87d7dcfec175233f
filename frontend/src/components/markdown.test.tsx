import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Markdown } from "@/components/markdown";
import { render } from "@/testing/render";

describe("Markdown", () => {
  it("shows headings, lists, code, emphasis and links", () => {
    const { container } = render(
      <Markdown text={"# Bot\n\nAnswers **questions** in `json`.\nBriefly.\n\n- one\n- two\n\n1. first\n\n```\na < b\n```\n[paper](https://example.org/a)"} />,
    );
    expect(screen.getByRole("heading", { level: 3, name: "Bot" })).toBeTruthy();
    expect([...container.querySelectorAll("ul li")].map((item) => item.textContent)).toEqual(["one", "two"]);
    expect(container.querySelector("ol li")?.textContent).toBe("first");
    expect(container.querySelector("pre code")?.textContent).toBe("a < b");
    expect(container.querySelector("p strong")?.textContent).toBe("questions");
    expect(screen.getByRole("link", { name: "paper" }).getAttribute("href")).toBe("https://example.org/a");
  });

  it("makes no HTML of what is written, and no link of another scheme", () => {
    const text = '<img src=x onerror="alert(1)"> <script>alert(2)</script>\n\n[a](javascript:alert(3)) [b](data:text/html,x)';
    const { container } = render(<Markdown text={text} />);
    expect(container.querySelector("img, script, a")).toBeNull();
    expect(container.textContent).toContain('<img src=x onerror="alert(1)">');
    expect(container.textContent).toContain("[a](javascript:alert(3))");
  });

  it("ends on any text, such as an open fence", () => {
    const { container } = render(<Markdown text={"```\nopen\n\n# not a heading"} />);
    expect(container.querySelector("pre code")?.textContent).toBe("open\n\n# not a heading");
  });
});
