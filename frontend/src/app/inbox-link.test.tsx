import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { InboxLink } from "@/app/inbox-link";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

describe("inbox link", () => {
  it("shows the number of unread notifications", async () => {
    server.answer("GET /notifications:unread", { unread: 3 });
    render(<InboxLink />);
    expect(await screen.findByRole("link", { name: "Inbox, 3 unread" })).toBeTruthy();
  });
});
