import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { AlertRule, Notification, NotificationPreferences } from "@/api/types";
import { AlertsPage } from "@/features/alerts/components/alerts-page";
import { session } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const RULE: AlertRule = {
  id: "alr_1", team: "red", name: "low MFU", measure: "series_below", series: "throughput/mfu_causal", window: 50,
  threshold: 0.28, clear_threshold: null, for_seconds: 300, job_name: "", labels: {}, severity: "warning",
  recipients: "owner", enabled: true, created_by: "ada", created_at: "2026-01-01T00:00:00Z",
};
const NOTE: Notification = {
  id: "ntf_1", team: "red", alert_id: "alt_1", kind: "firing", severity: "warning", title: "low MFU: llama",
  text: "llama: mfu is 0.1", job_id: "job_1", created_at: "2026-01-01T00:00:00Z", read_at: null, mail_at: null,
  mail_state: null, mail_error: null,
};
const PREFERENCES: NotificationPreferences = {
  email: "ada@example.com", mail_from: "warning", time_zone: "UTC", quiet_from: null, quiet_until: null,
  digest_at: null, critical_immediately: true, mail_is_on: true,
};
const page = <Item,>(...items: Item[]) => ({ items, next_cursor: null });

function open() {
  server.answer("GET /session", session());
  server.answer("GET /alert-rules", page(RULE));
  server.answer("GET /alerts", page());
  server.answer("GET /notifications", page(NOTE));
  server.answer("GET /notification-preferences", PREFERENCES);
  return render(<AlertsPage />);
}

describe("alerts page", () => {
  it("shows conditions in words and marks a notification as read", async () => {
    server.answer("POST /notifications:read", { unread: 0 });
    const { user } = open();
    expect(await screen.findByText("throughput/mfu_causal is below 0.28, for 300 s")).toBeTruthy();
    await user.click(await screen.findByRole("button", { name: "Mark low MFU: llama as read" }));
    await waitFor(() => expect(server.calls("POST /notifications:read")[0]?.json).toEqual({ ids: ["ntf_1"] }));
  });

  it("creates a rule with the fields of its measure", async () => {
    server.answer("POST /alert-rules", RULE);
    const { user } = open();
    const button = await screen.findByRole("button", { name: "New alert rule" });
    await waitFor(() => expect(button.hasAttribute("disabled")).toBe(false));
    await user.click(button);
    await user.type(await screen.findByLabelText("Name"), "stuck");
    await user.selectOptions(screen.getByLabelText("Condition"), "no_progress");
    expect(screen.queryByLabelText("Series")).toBeNull();
    await user.type(screen.getByLabelText("Threshold (minutes)"), "30");
    await user.click(screen.getByRole("button", { name: "Create" }));
    await waitFor(() => expect(server.calls("POST /alert-rules")).toHaveLength(1));
    expect(server.calls("POST /alert-rules")[0]?.json).toEqual({
      name: "stuck", measure: "no_progress", series: "", threshold: 30, clear_threshold: null, for_seconds: 0,
      job_name: "", severity: "warning", recipients: "owner", team: "red",
    });
  });

  it("changes only the fields of a rule that were changed", async () => {
    server.answer("PATCH /alert-rules/{alert_rule_id}", RULE);
    const { user } = open();
    const button = await screen.findByRole("button", { name: "Change low MFU" });
    await waitFor(() => expect(button.hasAttribute("disabled")).toBe(false));
    await user.click(button);
    const threshold = await screen.findByLabelText("Threshold");
    await user.clear(threshold);
    await user.type(threshold, "0.3");
    await user.type(screen.getByLabelText("Jobs named"), "llama*");
    await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Save" }));
    await waitFor(() => expect(server.calls("PATCH /alert-rules/{alert_rule_id}")).toHaveLength(1));
    expect(server.calls("PATCH /alert-rules/{alert_rule_id}")[0]?.json).toEqual({ threshold: 0.3, job_name: "llama*" });
  });

  it("saves preferences", async () => {
    server.answer("PATCH /notification-preferences", { ...PREFERENCES, mail_from: "critical" });
    const { user } = open();
    await user.selectOptions(await screen.findByLabelText("Mail"), "critical");
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect(await screen.findByText("Saved")).toBeTruthy();
    expect(server.calls("PATCH /notification-preferences")[0]?.json).toEqual({
      mail_from: "critical", time_zone: "UTC", quiet_from: null, quiet_until: null, digest_at: null,
      critical_immediately: true,
    });
  });
});
