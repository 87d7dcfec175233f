import { screen, waitFor } from "@testing-library/react";
import { beforeEach, describe, expect, it, vi } from "vitest";

import { UploadDialog } from "@/features/datasets/components/upload-dialog";
import type { Dataset } from "@/api/types";
import { dataset, inspection } from "@/testing/dataset-documents";
import { job, session } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const INSPECT = "POST /datasets:inspect";
const UPLOAD = "POST /datasets";
const SUBMIT = "POST /jobs";
const CONVERSATION = { messages: [{ role: "user", content: "Hi there" }, { role: "assistant", content: "Hello" }] };

async function choose(name: string, known: Dataset[] = []) {
  const onClose = vi.fn();
  const view = render(<UploadDialog opened teams={session().teams} known={known} onClose={onClose} />);
  const input = document.querySelector<HTMLInputElement>("input[type=file]");
  if (input === null) throw new Error("there is no input for the file");
  await view.user.upload(input, new File(["content"], name));
  return { ...view, onClose };
}

const tokenise = () => screen.getByLabelText<HTMLInputElement>("Tokenise it now");
const button = () => screen.getByRole<HTMLButtonElement>("button", { name: "Upload" });

describe("upload dialog", () => {
  beforeEach(() => {
    server.answer(UPLOAD, dataset());
    server.answer(SUBMIT, job());
  });

  it("shows conversations and leaves them to the job that trains on them", async () => {
    server.answer(INSPECT, inspection({ format: "chat", text_field: "messages", fields_with_text: [], rows: [CONVERSATION] }));
    const { user, onClose } = await choose("chats.jsonl");
    expect(await screen.findByText("Hi there")).toBeTruthy();
    expect(screen.getByText("Found: Conversations")).toBeTruthy();
    expect(tokenise().checked).toBe(false);
    await user.click(button());
    await waitFor(() => expect(onClose).toHaveBeenCalledOnce());
    expect(server.calls(INSPECT)[0]?.query).toEqual({ name: "chats.jsonl", format: "auto", rows: "5" });
    expect(server.calls(UPLOAD)[0]?.query).toEqual({ team: "red", name: "chats", format: "chat" });
    expect(server.calls(SUBMIT)).toHaveLength(0);
  });

  it("asks for the field that it cannot know, and tokenises by default", async () => {
    const found = { format: "jsonl", fields_with_text: ["question", "answer"], rows: [{ question: "a", answer: "b" }] };
    server.answer(INSPECT, inspection(found));
    const { user } = await choose("pairs.jsonl");
    await user.selectOptions(await screen.findByLabelText("Field with the text"), "answer");
    expect(tokenise().checked).toBe(true);
    await user.click(button());
    await waitFor(() => expect(server.calls(SUBMIT)).toHaveLength(1));
    expect(server.calls(UPLOAD)[0]?.query["text_field"]).toBe("answer");
  });

  it("does not upload before the field is chosen", async () => {
    server.answer(INSPECT, inspection({ format: "jsonl", fields_with_text: ["question", "answer"] }));
    await choose("pairs.jsonl");
    await screen.findByLabelText("Field with the text");
    expect(button().disabled).toBe(true);
  });

  it("says what is wrong with a file before it is uploaded", async () => {
    const problem = { code: "invalid_dataset", detail: "a.jsonl: line 2 is not JSON", remedy: "Correct it." };
    server.answer(INSPECT, refuse(422, problem));
    await choose("a.jsonl");
    expect(await screen.findByText(/line 2 is not JSON/)).toBeTruthy();
    expect(button().disabled).toBe(true);
  });

  it("warns of pairs and does not offer to tokenise them", async () => {
    server.answer(INSPECT, inspection({ format: "preference", fields_with_text: ["chosen"], note: "These are pairs." }));
    await choose("pairs.jsonl");
    expect(await screen.findByText("These are pairs.")).toBeTruthy();
    expect(screen.queryByLabelText("Tokenise it now")).toBeNull();
  });

  it("adds a version to a name in use only on request", async () => {
    server.answer(INSPECT, inspection());
    const { user, onClose } = await choose("chats.txt", [dataset({ version: 2 })]);
    const box = await screen.findByLabelText("Add a version to chats");
    await waitFor(() => expect(screen.getByText("Found: Plain text")).toBeTruthy());
    expect(button().disabled).toBe(true);
    await user.click(box);
    await user.click(button());
    await waitFor(() => expect(onClose).toHaveBeenCalledOnce());
    expect(server.calls(UPLOAD)[0]?.query).toMatchObject({ name: "chats", new_version: "true" });
  });
});
